package cli_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/api/user"
)

func (b *backend) AddPool(_ context.Context, args user.AddPoolArgs) error {
	text, err := json.Marshal(args)
	b.record("add-pool %s", text)
	if err != nil {
		return err
	}
	return b.err
}

func (b *backend) RemovePools(_ context.Context, names []string) error {
	b.record("remove-pools %q", names)
	return b.err
}

func TestPoolsListFormats(t *testing.T) {
	for _, test := range []struct{ format, want string }{
		{"table", "NAME   PROVIDER  ATTRIBUTES\nfast   loop      {\"fs\":\"xfs\"}\ntmpfs  tmpfs     {}\n"},
		{"json", `[
  {
    "name": "fast",
    "provider": "loop",
    "attributes": {
      "fs": "xfs"
    },
    "default": false
  },
  {
    "name": "tmpfs",
    "provider": "tmpfs",
    "attributes": {},
    "default": true
  }
]
`},
		{"yaml", `- name: fast
  provider: loop
  attributes:
    fs: xfs
  default: false
- name: tmpfs
  provider: tmpfs
  attributes: {}
  default: true
`},
	} {
		m := newMachine(t, &backend{})
		for _, command := range []string{"pools list", "pools"} {
			r := m.run(t.Context(), append(strings.Fields(command), "-o", test.format)...)
			if r.code != 0 || r.stdout != test.want {
				t.Errorf("%s -o %s: exit status %d, stderr %q, stdout\n%s\nwant\n%s", command, test.format, r.code, r.stderr, r.stdout, test.want)
			}
		}
	}
}

func TestPoolsAddAndRemoveReachAgent(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"add", "fast", "loop"}, `add-pool {"name":"fast","provider":"loop","attributes":{},"replace":false}`},
		{[]string{"add", "fast", "loop", "fs=xfs", "--replace"}, `add-pool {"name":"fast","provider":"loop","attributes":{"fs":"xfs"},"replace":true}`},
		{[]string{"add", "fast", "san", "a=4", "b=-4", "c=true", `d="4"`, "e='true'", "f=", "g=1.5", "h=null", "i=x=y", "j=[a]", "k=yes", "l=a b # c"},
			`add-pool {"name":"fast","provider":"san","attributes":{"a":4,"b":-4,"c":true,"d":"4","e":"true","f":"","g":"1.5",` +
				`"h":"null","i":"x=y","j":"[a]","k":"yes","l":"a b # c"},"replace":false}`},
		{[]string{"remove", "fast"}, `remove-pools ["fast"]`},
		{[]string{"remove", "fast", "slow"}, `remove-pools ["fast" "slow"]`},
	} {
		b := &backend{}
		r := newMachine(t, b).run(t.Context(), append([]string{"pools"}, test.args...)...)
		if r.code != 0 || r.stdout != "" || r.stderr != "" {
			t.Errorf("%q: %+v", test.args, r)
		}
		if got := b.recordedCalls(); !slices.Equal(got, []string{test.want}) {
			t.Errorf("%q: the agent was asked\n%q\nwant\n%q", test.args, got, test.want)
		}
	}
}

func TestPoolsErrors(t *testing.T) {
	const usage = "Run `stowage --help` for usage.\n"
	refused := errors.NewNotValid(nil, `pool "fast" is in use: remove its storage first`)
	for _, test := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"sing", 2, "unknown command \"sing\" for \"stowage pools\"\n" + usage},
		{"list fast", 2, "\"fast\" is one argument too many for \"stowage pools list\": leave the argument out\n" + usage},
		{"list -o xml", 2, "-o \"xml\" is not known: write table, json, yaml or jsonpath=PATH\n"},
		{"add fast", 2, "requires at least 2 arg(s), only received 1\n" + usage},
		{"add fast loop fs", 2, "\"fs\" is not KEY=VALUE, such as fs=xfs\n"},
		{"add fast loop =xfs", 2, "\"=xfs\" is not KEY=VALUE, such as fs=xfs\n"},
		{"add fast loop fs=xfs fs=ext4", 2, "attribute \"fs\" is given twice\n"},
		{"add fast loop fs=\"xfs", 2, "attribute \"fs\": the quotes in \"xfs do not match: close them, or leave them out\n"},
		{"remove", 2, "requires at least 1 arg(s), only received 0\n" + usage},
		{"add fast loop", 1, refused.Error() + "\n"},
		{"remove fast", 1, refused.Error() + "\n"},
	} {
		b := &backend{err: refused}
		r := newMachine(t, b).run(t.Context(), append([]string{"pools"}, strings.Fields(test.args)...)...)
		if want := "stowage: " + test.stderr; r.code != test.code || r.stderr != want || r.stdout != "" {
			t.Errorf("pools %s: exit status %d, stdout %q, stderr\n%swant %d,\n%s", test.args, r.code, r.stdout, r.stderr, test.code, want)
		}
		if asked := len(b.recordedCalls()) != 0; asked != (test.code == 1) {
			t.Errorf("pools %s: the agent was asked %q", test.args, b.recordedCalls())
		}
	}
	r := newMachine(t, nil).run(t.Context(), "pools", "add", "fast", "loop")
	if r.code != 1 || !strings.HasSuffix(r.stderr, "is `stowage run` or `stowage server` running, with this --data-dir or $STOWAGE_DIR?\n") {
		t.Errorf("without an agent: %+v", r)
	}
}
