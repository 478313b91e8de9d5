package state

import "testing"

// TestParseEntityTagAgreesWithNames compares with the names package.
func TestParseEntityTagAgreesWithNames(t *testing.T) {
	for _, test := range []struct{ text, scope, id string }{
		{"volume-0", environScope, "0"},
		{"volume-12-34", "machine-12", "12/34"},
		{"filesystem-0-lxd-1-2", "machine-0-lxd-1", "0/lxd/1/2"},
		{"filesystem-gitlab-0-3", environScope, "gitlab/0/3"},
		{"volume-00", "", ""},
		{"volume-1-2-3", "", ""},
		{"volume-1-", "", ""},
		{"volume-1-02", "", ""},
		{"volume-", "", ""},
		{"volume", "", ""},
		{"machine-0", "", ""},
		{"unit-gitlab-0", "", ""},
	} {
		tag, err := parseEntityTag(test.text)
		if (err == nil) != (test.id != "") {
			t.Errorf("%q: error is %v", test.text, err)
		}
		if err != nil {
			continue
		}
		if tag.scope() != test.scope || tag.id() != test.id || tag.tag().Id() != test.id || tag.tag().String() != test.text {
			t.Errorf("%q is %s of %s, and %s to package names", test.text, tag.id(), tag.scope(), tag.tag().Id())
		}
	}
}
