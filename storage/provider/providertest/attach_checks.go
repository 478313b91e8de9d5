package providertest

import (
	"path/filepath"
	"reflect"
	"slices"

	"github.com/juju/errors"

	"github.com/stowage-io/stowage/environs/envcontext"
	"github.com/stowage-io/stowage/storage"
)

// checkAttached checks the result of an attachment.
func (b *bench) checkAttached(e *entity, got attachment) {
	b.Helper()
	if got.tag != e.tag {
		b.Errorf("attaching %s: it is returned as %v", e.tag, got.tag)
	}
	if got.host != e.host.Machine {
		b.Errorf("attaching %s to %s: it is returned as attached to %v", e.tag, e.host.Machine, got.host)
	}
	if got.readOnly != e.host.ReadOnly {
		b.Errorf("attaching %s: read-only is %t, want %t", e.tag, got.readOnly, e.host.ReadOnly)
	}
	if b.kind.kind != storage.StorageKindFilesystem {
		return
	}
	path := got.filesystem.Path
	if !filepath.IsAbs(path) || e.path != "" && path != e.path {
		b.Errorf("attaching %s at %q: it is at %q", e.tag, e.path, path)
	}
}

func checkAttach(b *bench) {
	all := b.some(2)
	for i, got := range b.attach(all...) {
		b.checkAttached(all[i], got)
		b.write(got)
		b.checkData(got)
	}
}

func checkAttachIsIdempotent(b *bench) {
	e := b.entity()
	made := b.create(e)[0]
	first := b.attach(e)[0]
	if made.attachment != nil && !reflect.DeepEqual(*made.attachment, first) {
		b.Errorf("%s was attached as %s when it was made, and then as %s", e.tag, b.place(*made.attachment), b.place(first))
	}
	b.write(first)
	again := func(when string) {
		b.Helper()
		got := b.attach(e)[0]
		if !reflect.DeepEqual(got, first) {
			b.Errorf("%s was attached as %s, and %s as %s", e.tag, b.place(first), when, b.place(got))
		}
		b.checkData(got)
	}
	again("again")
	b.restart()
	again("after a restart")
	// One detachment must undo any number of attachments.
	b.remove(e)
}

func checkAttachFailsOneByOne(b *bench) {
	destroyed := b.destroyed()
	all := b.some(2)
	results := b.tryAttach(all[0], destroyed, all[1])
	for i, e := range []*entity{all[0], destroyed, all[1]} {
		got := results[i]
		switch {
		case e == destroyed && got.err == nil:
			b.Errorf("%s was destroyed, but attaching it succeeded", e.tag)
		case e != destroyed && got.err != nil:
			b.Errorf("attaching %s together with one that does not exist: %v", e.tag, got.err)
		case e != destroyed:
			b.checkAttached(e, *got.attachment)
		}
	}
}

func checkAttachChoosesAPath(b *bench) {
	e := b.entity()
	e.path = ""
	b.create(e)
	first := b.attach(e)[0]
	b.checkAttached(e, first)
	b.write(first)
	again := b.attach(e)[0]
	if !reflect.DeepEqual(first, again) {
		b.Errorf("%s was attached as %s, and again as %s", e.tag, b.place(first), b.place(again))
	}
	b.checkData(again)
	b.remove(e)
}

func checkReadOnly(b *bench) {
	e := b.one()
	a := b.attach(e)[0]
	b.write(a)
	b.detach(e)

	e.host.ReadOnly = true
	got := b.tryAttach(e)[0]
	if errors.Is(got.err, errors.NotSupported) {
		b.Skipf("the provider does not support read-only attachments: %v", got.err)
	}
	b.successes("attaching read-only", []error{got.err})
	a = *got.attachment
	b.checkAttached(e, a)
	if b.seesData(a) && b.tryWrite(a) == nil {
		b.Errorf("%s, attached read-only as %s, was written to", e.tag, b.place(a))
	}
	b.checkKept(a)
	b.detach(e)

	e.host.ReadOnly = false
	a = b.attach(e)[0]
	b.checkAttached(e, a)
	b.write(a)
}

func checkChecking(b *bench) {
	check := b.source.checker()
	if check == nil {
		b.Skipf("the source does not check attached %ss", b.kind.noun)
	}
	all := b.some(2)
	attached := b.attach(all...)
	b.write(attached...)
	ids := []string{all[1].id, all[0].id}
	for _, when := range []string{"once attached", "again", "after a restart"} {
		results, err := check(b.ctx, ids)
		answers(b, "checking "+when, len(ids), results, err)
		for i, err := range results {
			if err != nil {
				b.Errorf("checking %s: %s is still as it was attached: got %v, want nil", when, ids[i], err)
			}
		}
		b.checkData(attached...)
		if when == "again" {
			b.restart()
			check = b.source.checker()
		}
	}
}

func checkAttachmentsAreListed(b *bench) {
	list := func() func(envcontext.ProviderCallContext) ([]storage.ListedAttachment, error) {
		lister, ok := b.source.(*volumes).VolumeSource.(storage.AttachmentLister)
		if !ok {
			b.Skip("the source does not list attachments")
		}
		return lister.ListVolumeAttachments
	}
	list()
	all := b.some(3)
	b.detach(all...)
	check := func(when string, attached ...*entity) {
		b.Helper()
		listed, err := list()(b.ctx)
		if errors.Is(err, errors.NotSupported) {
			b.Skipf("the source does not list attachments: %v", err)
		}
		if err != nil {
			b.Fatalf("%s: listing attachments: %v", when, err)
		}
		for _, e := range all {
			count := 0
			for _, a := range listed {
				if a.VolumeId != e.id {
					continue
				}
				count++
				if a.Machine != e.host.Machine {
					b.Errorf("%s: %s is listed as attached to %v, want %v", when, e.tag, a.Machine, e.host.Machine)
				}
			}
			want := 0
			if slices.Contains(attached, e) {
				want = 1
			}
			if count != want {
				b.Errorf("%s: %s is listed %d times, want %d", when, e.tag, count, want)
			}
		}
	}
	check("before attaching")
	b.attach(all[0], all[1])
	check("after attaching", all[0], all[1])
	b.restart()
	check("after a restart", all[0], all[1])
	b.attach(all[1])
	check("after attaching again", all[0], all[1])
	b.detach(all[0])
	check("after detaching", all[1])
	b.remove(all[1])
	check("after destroying")
}

func checkDetachIsIdempotent(b *bench) {
	e := b.one()
	again := func(when string) {
		b.Helper()
		for i, err := range b.tryDetach(e) {
			if err != nil {
				b.Errorf("detaching %s, %s: item %d: %v", e.tag, when, i, err)
			}
		}
	}
	again("which was never attached")
	b.attach(e)
	b.detach(e)
	again("which was detached already")
	b.restart()
	again("which was detached before a restart")
	b.destroy(e)
	again("which was destroyed")
}

func checkDetachTouchesNothingElse(b *bench) {
	destroyed := b.destroyed()
	all := b.some(3)
	attachments := b.attach(all...)
	b.write(attachments...)
	b.successes("detaching", b.tryDetach(destroyed, all[1]))
	others := []attachment{attachments[0], attachments[2]}
	b.checkData(others...)
	for i, got := range b.attach(all[0], all[2]) {
		if !reflect.DeepEqual(got, others[i]) {
			b.Errorf("%s was attached as %s, and after another was detached as %s", got.tag, b.place(others[i]), b.place(got))
		}
	}
	b.checkData(others...)
	if !b.BlindToUse {
		// The one that was detached can be destroyed.
		b.destroy(all[1])
	}
}

func checkDataSurvive(b *bench) {
	if b.Volatile {
		b.Skip("detaching loses the data: Config.Volatile")
	}
	e := b.one()
	a := b.attach(e)[0]
	if !b.seesData(a) {
		b.Skipf("no access to the data of an attached %s: neither on this machine nor through Config", b.kind.noun)
	}
	b.write(a)
	b.detach(e)
	b.checkData(b.attach(e)...)
	b.detach(e)
	b.restart()
	b.create(e)
	b.checkData(b.attach(e)...)
}

// checkMountOptions uses no options, which every filesystem can have.
func checkMountOptions(b *bench) {
	set := b.source.mountOptions()
	if set == nil {
		b.Skipf("the source keeps no mount options")
	}
	destroyed, e := b.destroyed(), b.written()
	results, err := set(b.ctx, []storage.FilesystemMountOptions{{FilesystemId: destroyed.id}, {FilesystemId: e.id}})
	errs := answers(b, "setting mount options", 2, results, err)
	if !errors.Is(errs[0], errors.NotFound) || errs[1] != nil {
		b.Errorf("setting the mount options of %s, which was destroyed, and of %s: got %v, want a \"not found\" error, and none", destroyed.tag, e.tag, errs)
	}
	attached := b.attach(e)
	results, err = set(b.ctx, []storage.FilesystemMountOptions{{FilesystemId: e.id}})
	if errs := answers(b, "setting mount options", 1, results, err); errs[0] == nil {
		b.Errorf("setting the mount options of %s, which is attached, succeeded", e.tag)
	}
	b.checkKept(attached...)
	b.detach(e)
	b.restart()
	for range 2 {
		results, err = set(b.ctx, []storage.FilesystemMountOptions{{FilesystemId: e.id}})
		b.successes("setting mount options", answers(b, "setting mount options", 1, results, err))
	}
	b.checkKept(b.attach(e)...)
}
