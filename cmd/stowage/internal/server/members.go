package server

import (
	"context"
	"sync"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"gopkg.in/tomb.v2"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/member"
	"github.com/stowage-io/stowage/internal/agentwire"
	"github.com/stowage-io/stowage/state/kv"
	"github.com/stowage-io/stowage/watcher"
	"github.com/stowage-io/stowage/worker/leased"
)

// Each of several servers with one state has a lease as long as it runs, by its name. When another
// server can acquire that lease, the server does not run any more: then its agents have some time
// to connect to other servers.

func memberLease(server string) string { return "server/" + server }

// membership renews this server's lease. While it has none, it serves no agents.
type membership struct {
	tomb   tomb.Tomb
	server *Server
	leaser kv.Leaser
}

// startMembership starts the worker. It owns the lease that the server has begun with.
func (s *Server) startMembership(leaser kv.Leaser) (worker.Worker, error) {
	m := &membership{server: s, leaser: leaser}
	m.tomb.Go(m.run)
	return m, nil
}

func (m *membership) run() error {
	ctx := m.tomb.Context(context.Background())
	for {
		select {
		case <-m.tomb.Dying():
			return tomb.ErrDying
		case <-m.server.member.Done():
		}
		m.server.config.Logger.Warningf("no connection to the other servers: no agents are served")
		m.server.handler.Suspend()
		lease, err := m.leaser.Acquire(ctx, memberLease(m.server.name))
		if err != nil {
			return errors.Trace(err)
		}
		m.server.member = lease
		m.server.handler.Resume()
		m.server.config.Logger.Infof("agents are served again")
	}
}

// Kill implements worker.Worker.
func (m *membership) Kill() { m.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (m *membership) Wait() error { return m.tomb.Wait() }

// peers waits for the end of other servers that have agents.
type peers struct {
	tomb    tomb.Tomb
	server  *Server
	leaser  kv.Leaser
	changes watcher.NotifyWatcher

	mu       sync.Mutex
	followed map[string]bool
}

func (s *Server) startPeers(leaser kv.Leaser) (worker.Worker, error) {
	changes, err := s.state.WatchPresence()
	if err != nil {
		return nil, errors.Trace(err)
	}
	p := &peers{server: s, leaser: leaser, changes: changes, followed: make(map[string]bool)}
	p.tomb.Go(func() error {
		defer watcher.Stop(changes, &p.tomb)
		return p.run()
	})
	return p, nil
}

func (p *peers) run() error {
	for {
		select {
		case <-p.tomb.Dying():
			return tomb.ErrDying
		case _, ok := <-p.changes.Changes():
			if !ok {
				return watcher.EnsureErr(p.changes)
			}
		}
		machines, err := p.server.state.Machines()
		if err != nil {
			return errors.Trace(err)
		}
		for _, m := range machines {
			if other := m.Presence.Server; m.Presence.Connected && other != p.server.name && p.follow(other) {
				p.tomb.Go(func() error { return p.await(other) })
			}
		}
	}
}

// follow reports whether nobody waits for the end of the server yet.
func (p *peers) follow(server string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.followed[server] {
		return false
	}
	p.followed[server] = true
	return true
}

// await waits for the end of a server, and then for its agents.
func (p *peers) await(server string) error {
	lease, err := p.leaser.Acquire(p.tomb.Context(context.Background()), memberLease(server))
	if err != nil {
		return errors.Trace(err)
	}
	defer leased.Release(lease)
	p.mu.Lock()
	delete(p.followed, server)
	p.mu.Unlock()
	return errors.Trace(p.server.handler.InheritAgents(server))
}

// Kill implements worker.Worker.
func (p *peers) Kill() { p.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (p *peers) Wait() error { return p.tomb.Wait() }

// etcdMember returns this server's member of the cluster, or nil if it has none.
func (s *Server) etcdMember() *member.Member {
	if p, ok := s.place.(*inEtcd); ok {
		return p.member
	}
	return nil
}

// addMember returns the function that makes room for a new server in the cluster, or nil if there is
// none.
func (s *Server) addMember() func(context.Context, string, string) (agentwire.JoinedCluster, error) {
	m := s.etcdMember()
	if m == nil {
		return nil
	}
	ca := s.place.(*inEtcd).cluster.ca
	return func(ctx context.Context, name, address string) (agentwire.JoinedCluster, error) {
		key, err := ca.Key()
		if err != nil {
			return agentwire.JoinedCluster{}, errors.Trace(err)
		}
		cluster, err := m.Add(ctx, name, address)
		return agentwire.JoinedCluster{Members: cluster, CA: string(ca.Certificate()), Key: string(key)}, errors.Trace(err)
	}
}

// errMemberEnded is the type of the error of a server whose member has ended.
const errMemberEnded = errors.ConstError("the server cannot go on without its etcd")

// awaitMember starts a worker that ends with the member.
func (p *inEtcd) awaitMember() (worker.Worker, error) {
	var t tomb.Tomb
	t.Go(func() error {
		select {
		case <-t.Dying():
			return tomb.ErrDying
		case <-p.member.Done():
			return p.cluster.explain(member.ErrEnded)
		}
	})
	return &tombWorker{&t}, nil
}

// tombWorker is the worker of a tomb.
type tombWorker struct{ *tomb.Tomb }

// Kill implements worker.Worker.
func (w *tombWorker) Kill() { w.Tomb.Kill(nil) }

// servers returns the members as users see them.
func servers(peers []member.Peer) []user.Server {
	all := make([]user.Server, len(peers))
	for i, p := range peers {
		status := user.ServerUp
		switch {
		case p.Joining:
			status = user.ServerJoining
		case p.Version == "":
			status = user.ServerUnreachable
		}
		all[i] = user.Server{Name: p.Name, Address: p.Address, Status: status, Leader: p.Leads, Asked: p.Own, EtcdVersion: p.Version}
	}
	return all
}
