package storageprovisioner

import (
	"github.com/juju/errors"

	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"
	"github.com/stowage-io/stowage/worker/storageprovisioner/internal/translate"
)

// publish records results in the state: first statuses, then the ends of attempts, then infos
// of volumes and filesystems, then infos of attachments, then removals.
func (l *loop) publish(p plan.Publication) job {
	config := l.config
	statuses := statusArgs(p.Statuses)
	for _, args := range statuses {
		l.unset.drop(args.Tag) // this one is newer
	}
	return func() (reply, error) {
		unset := setStatuses(config, statuses)
		unnoted, err := config.state().NoteEnded(p)
		if err != nil {
			return nil, err
		}
		for _, u := range unnoted {
			config.Logger.Warningf("recording that the attempt to make %s has ended: %v", u.Key(), u.Err)
		}
		all, err := config.state().Publish(p)
		if err != nil {
			return nil, err
		}
		return func() {
			if unset != nil {
				l.unset.add(statuses, l.config.Clock.Now())
			}
			l.published(p, all)
		}, nil
	}
}

// published handles the state's answers to a publication.
func (l *loop) published(p plan.Publication, all []translate.Published) {
	for _, r := range p.Records {
		if fs, ok := r.Info.(translate.FilesystemInfo); ok {
			l.backing.setFilesystem(fs.Filesystem)
		}
	}
	var refused errorGroups
	for _, r := range all {
		if r.Err != nil && !errors.Is(r.Err, errors.NotFound) {
			refused.add(r.Key(), r.Err)
		}
	}
	refused.each(func(of, err string) {
		l.config.Logger.Warningf("recording %s: %s; will be retried", of, err)
	})
	for _, r := range all {
		l.core.Published(r.Subject, r.Err)
	}
	for _, r := range p.Removals {
		if r.Kind() == plan.Filesystem {
			l.backing.forgetFilesystem(r.Key().ID)
		}
	}
	l.unset.dropRemoved(p.Removals, all)
}
