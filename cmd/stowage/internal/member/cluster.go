package member

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/juju/errors"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// Peer is a member of a cluster as another one sees it.
type Peer struct {
	Name, Address string
	// Own says that it is the member itself, and Leads that it orders the changes of the state.
	Own, Leads bool
	// Joining says that the member has not all data yet, so that it does not count.
	Joining bool
	// Version is that of the member's etcd. It is empty if the member does not answer.
	Version string
}

// answerTimeout is how long a member may take to answer.
const answerTimeout = 2 * time.Second

// List returns all members, sorted by name, and asks each whether it runs.
func (m *Member) List(ctx context.Context) []Peer {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	server := m.etcd.Server
	members := server.Cluster().Members()
	peers := make([]Peer, len(members))
	var asked sync.WaitGroup
	for i, other := range members {
		p := &peers[i]
		*p = Peer{
			Name:    other.Name,
			Address: addressOf(other.PeerURLs),
			Own:     other.ID == server.MemberID(),
			Leads:   other.ID == server.Leader(),
			Joining: other.IsLearner,
		}
		asked.Go(func() { p.Version = m.version(ctx, p.Address) })
	}
	asked.Wait()
	slices.SortFunc(peers, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	return peers
}

// version returns the version of the member at the address, or nothing if it does not answer.
func (m *Member) version(ctx context.Context, address string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/version", nil)
	if err != nil {
		return ""
	}
	response, err := m.http.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Version string `json:"etcdserver"`
	}
	const maxAnswer = 4096
	if json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&answer) != nil {
		return ""
	}
	return answer.Version
}

// addressOf returns the host and port of a member's only URL.
func addressOf(urls []string) string {
	return strings.TrimPrefix(strings.Join(urls, ", "), "https://")
}

// Add makes room for a new member, and returns what it needs as [Config.Cluster]. To repeat it does
// no harm, unless the new member has begun.
func (m *Member) Add(ctx context.Context, name, address string) (cluster string, err error) {
	if err := CheckAddress(address); err != nil {
		return "", errors.Trace(err)
	}
	if !nameForm.MatchString(name) {
		return "", errors.NotValidf("the name of a server, %q,", name)
	}
	own := url.URL{Scheme: "https", Host: address}
	err = m.change(ctx, "adding a server", func(ctx context.Context) error {
		members := m.etcd.Server.Cluster().Members()
		for _, other := range members {
			switch {
			case addressOf(other.PeerURLs) == address && !other.IsStarted(): // it was added before
				cluster = clusterOf(members, name, address)
				return nil
			case addressOf(other.PeerURLs) == address || other.Name == name:
				return errors.NewAlreadyExists(nil, fmt.Sprintf("there is a server %s at %s already: if it is lost, remove it with `stowage server remove %[1]s` first", other.Name, addressOf(other.PeerURLs)))
			}
		}
		response, err := m.client.MemberAddAsLearner(ctx, []string{own.String()})
		if err != nil {
			return err
		}
		all := make([]*membership.Member, len(response.Members))
		for i, other := range response.Members {
			all[i] = &membership.Member{}
			all[i].Name, all[i].PeerURLs = other.Name, other.PeerURLs
		}
		cluster = clusterOf(all, name, address)
		return nil
	})
	if err == nil {
		m.config.Logger.Infof("server %s at %s joins", name, address)
	}
	return cluster, err
}

// clusterOf returns the members in etcd's notation. The one at the address gets the name.
func clusterOf(members []*membership.Member, name, address string) string {
	all := make([]string, 0, len(members))
	for i, other := range members {
		switch {
		case addressOf(other.PeerURLs) == address:
			all = append(all, name+"=https://"+address)
		case other.Name == "": // another one that has not begun
			all = append(all, fmt.Sprintf("unnamed-%d=https://%s", i, addressOf(other.PeerURLs)))
		default:
			all = append(all, other.Name+"=https://"+addressOf(other.PeerURLs))
		}
	}
	return strings.Join(all, ",")
}

// Remove removes the member with the name, or with the address if it has not begun. What it has of
// the state is of no use from then on. The error satisfies errors.IsNotFound if there is no such
// member.
func (m *Member) Remove(ctx context.Context, name string) error {
	tried := false
	return m.change(ctx, fmt.Sprintf("removing server %s", name), func(ctx context.Context) error {
		members := m.etcd.Server.Cluster().Members()
		i := slices.IndexFunc(members, func(other *membership.Member) bool { return other.Name == name || addressOf(other.PeerURLs) == name })
		switch {
		case i < 0 && tried:
			return nil
		case i < 0:
			return errors.NewNotFound(nil, fmt.Sprintf("there is no server %q: `stowage servers` lists them", name))
		case members[i].ID == m.etcd.Server.MemberID():
			return errors.NewNotValid(nil, fmt.Sprintf("server %s cannot remove itself: use another one", name))
		}
		tried = true
		_, err := m.client.MemberRemove(ctx, uint64(members[i].ID))
		return err
	})
}

// changeTime is how long a change of the members is tried. For some seconds after a member has begun
// or ended, etcd refuses changes, or loses them.
const changeTime = 20 * time.Second

// change changes the members. do may be called again.
func (m *Member) change(ctx context.Context, what string, do func(context.Context) error) error {
	for began := m.config.Clock.Now(); ; {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		err := do(attempt)
		passes := attempt.Err() != nil || errors.Is(err, rpctypes.ErrUnhealthy) || errors.Is(err, rpctypes.ErrTimeout) || errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail) || errors.Is(err, rpctypes.ErrNoLeader)
		cancel()
		if err == nil || !passes || ctx.Err() != nil || m.config.Clock.Now().Sub(began) > changeTime {
			return explain(err, what)
		}
		select {
		case <-m.config.Clock.After(tendInterval):
		case <-ctx.Done():
		}
	}
}

// explain says what an error of a change of the members means.
func explain(err error, what string) error {
	var why string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errors.NotFound), errors.Is(err, errors.NotValid), errors.Is(err, errors.AlreadyExists):
		return errors.Trace(err)
	case errors.Is(err, rpctypes.ErrUnhealthy), errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		why = "that needs more than half of the servers, before and after it, and another server is not running: start it, or remove that one first"
	case errors.Is(err, rpctypes.ErrTooManyLearners):
		why = fmt.Sprintf("%d servers are joining: wait until they have, or remove those that were given up (`stowage servers` lists them)", maxJoining)
	default:
		return errors.Annotate(err, what)
	}
	return errors.NewForbidden(nil, what+": "+why)
}
