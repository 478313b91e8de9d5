package member

import (
	"context"
	"slices"
	"time"

	"github.com/juju/errors"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// tendInterval is how often a member sees to what it has to do for itself and the others.
const tendInterval = time.Second

// tend sees to what etcd does not do by itself: new members take part once they have all data,
// certificates are renewed, and the database gives space back.
func (m *Member) tend() {
	for {
		timer := m.config.Clock.NewTimer(tendInterval)
		select {
		case <-m.ctx.Done():
			timer.Stop()
			return
		case now := <-timer.Chan():
			m.promote()
			if err := m.renewCredentials(now); err != nil {
				m.config.Logger.Warningf("renewing the certificate for other servers: %v", err)
			}
			if err := m.makeSpace(now); err != nil {
				m.config.Logger.Warningf("making space in etcd: %v", err)
			}
		}
	}
}

// renewCredentials writes a new certificate when the current one is due.
func (m *Member) renewCredentials(now time.Time) error {
	if now.Before(m.renewAt) {
		return nil
	}
	return errors.Trace(m.writeCredentials())
}

// promote lets new members that have all data take part. The leader alone knows which have.
func (m *Member) promote() {
	server := m.etcd.Server
	if server.Leader() != server.MemberID() {
		return
	}
	for _, other := range server.Cluster().Members() {
		if !other.IsLearner || !other.IsStarted() {
			continue
		}
		ctx, cancel := context.WithTimeout(m.ctx, requestTimeout)
		_, err := m.client.MemberPromote(ctx, uint64(other.ID))
		cancel()
		if err == nil {
			m.config.Logger.Infof("server %s has joined", other.Name)
		} // otherwise it has not all data yet
	}
}

const (
	requestTimeout = 5 * time.Second

	// spaceInterval is how often space is made at most.
	spaceInterval = time.Minute

	// wasteToKeep is the free space in the database that is kept, in bytes.
	wasteToKeep = 64 << 20

	// spaceLock is the key of the lock for making space, in etcd.
	spaceLock = "/stowage-members/space"
)

// makeSpace gives free space of the database back when more than half of it is free, or when etcd
// refuses changes because the database has reached its limit.
func (m *Member) makeSpace(now time.Time) error {
	backend := m.etcd.Server.Backend()
	free := backend.Size() - backend.SizeInUse()
	switch {
	case now.Before(m.spaceAt):
		return nil
	case m.hasAlarm():
		m.spaceAt = now.Add(spaceInterval)
		return m.recoverFromFull()
	case free < wasteToKeep || free < backend.SizeInUse():
		return nil
	}
	m.spaceAt = now.Add(spaceInterval)
	// The member serves nothing in the meantime, so the others wait for their turn.
	session, err := concurrency.NewSession(m.client, concurrency.WithContext(m.ctx), concurrency.WithTTL(int(spaceInterval/time.Second)))
	if err != nil {
		return errors.Trace(err)
	}
	defer func() { _ = session.Close() }() // it ends by itself
	lock := concurrency.NewMutex(session, spaceLock)
	if err := lock.TryLock(m.ctx); errors.Is(err, concurrency.ErrLocked) {
		return nil
	} else if err != nil {
		return errors.Trace(err)
	}
	defer func() { _ = lock.Unlock(m.ctx) }() // it ends with the session
	return m.defragment()
}

func (m *Member) defragment() error {
	backend := m.etcd.Server.Backend()
	before := backend.Size()
	err := m.etcd.Server.Defragment()
	if err == nil {
		m.config.Logger.Infof("etcd's database had %d MiB, and has %d MiB without its free space", before>>20, backend.Size()>>20)
	}
	return errors.Trace(err)
}

// recoverFromFull gives up the history of keys, and lets etcd accept changes again if that was
// enough. etcd grants no leases now, so the members do not wait for each other.
func (m *Member) recoverFromFull() error {
	ctx, cancel := context.WithTimeout(m.ctx, spaceInterval)
	defer cancel()
	current, err := m.client.Get(ctx, spaceLock)
	if err != nil {
		return errors.Trace(err)
	}
	_, err = m.client.Compact(ctx, current.Header.Revision, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return errors.Trace(err)
	}
	if err := m.defragment(); err != nil {
		return errors.Trace(err)
	}
	if size := m.etcd.Server.Backend().Size(); size > m.config.Quota/10*9 {
		return errors.Errorf("the state takes %d of %d MiB, so that changes are still refused: remove storage that is no longer needed", size>>20, m.config.Quota>>20)
	}
	_, err = m.client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: uint64(m.etcd.Server.MemberID()), Alarm: pb.AlarmType_NOSPACE})
	return errors.Trace(err)
}

// hasAlarm reports whether etcd refuses changes because of this member's database.
func (m *Member) hasAlarm() bool {
	return slices.ContainsFunc(m.etcd.Server.Alarms(), func(a *pb.AlarmMember) bool {
		return a.GetAlarm() == pb.AlarmType_NOSPACE && a.GetMemberID() == uint64(m.etcd.Server.MemberID())
	})
}

// IsFull reports whether etcd refuses changes because the database of a member has reached its
// limit.
func (m *Member) IsFull() bool {
	return slices.ContainsFunc(m.etcd.Server.Alarms(), func(a *pb.AlarmMember) bool { return a.GetAlarm() == pb.AlarmType_NOSPACE })
}

// Size returns the size of the database in bytes.
func (m *Member) Size() int64 { return m.etcd.Server.Backend().Size() }
