package server

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/juju/errors"
	"github.com/juju/worker/v4"

	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/state"
)

// Servers of several versions have a state together while they are replaced one after the other. A new
// server leaves the schema as the older ones need it, and raises it when they are gone. For this, the
// name of a server's lease says what schema it knows.

// running is what the name of a server's lease says. Of a server of a version before this, only the ID
// is known.
type running struct {
	id     string // another one each time that the server starts
	schema int
	name   string // of the server, for ever
}

func (r running) String() string {
	return r.id + "." + strconv.Itoa(r.schema) + "." + r.name
}

// title returns the name of the server for users.
func (r running) title() string { return cmp.Or(r.name, "one of an older version") }

func parseRunning(text string) running {
	id, rest, _ := strings.Cut(text, ".")
	schema, name, _ := strings.Cut(rest, ".")
	number, err := strconv.Atoi(schema)
	if err != nil {
		return running{id: text}
	}
	return running{id, number, name}
}

// servers returns the servers that run.
func (p *inEtcd) servers(ctx context.Context) ([]running, error) {
	names, err := p.LeaseNames(ctx, memberLease(""))
	if err != nil {
		return nil, errors.Trace(err)
	}
	all := make([]running, len(names))
	for i, name := range names {
		all[i] = parseRunning(name)
	}
	return all, nil
}

// olderServers returns the names of the servers that may not know the schema of this version: those of
// which a lease says so, and the members that do not run. Both may be started again as they are.
func olderServers(servers []running, members []string) []string {
	var older []string
	current := make(map[string]bool)
	for _, s := range servers {
		switch {
		case s.schema >= state.SchemaVersion:
			current[s.name] = true
		case s.name != "" || len(members) == 0:
			older = append(older, s.title())
		}
	}
	for _, name := range members {
		if !current[name] {
			older = append(older, name)
		}
	}
	slices.Sort(older)
	return slices.Compact(older)
}

const schemaInterval = 10 * time.Second

// schemaRaiser raises the schema once all servers know the one of this version.
type schemaRaiser struct {
	server *Server
	place  *inEtcd

	raised bool
	// alone says that there was no older server at the last check. A server opens the state before it
	// has its lease, so one such check is not enough.
	alone  bool
	logged []string // the older servers in the latest message
}

func (s *Server) startSchemaRaiser(p *inEtcd) (worker.Worker, error) {
	r := &schemaRaiser{server: s, place: p}
	return process.Every(s.config.Clock, schemaInterval, func() error { return r.check(context.Background()) }), nil
}

func (r *schemaRaiser) check(ctx context.Context) error {
	if r.raised {
		return nil
	}
	servers, err := r.place.servers(ctx)
	if err != nil {
		return nil // it is tried again when there is a connection
	}
	var members []string
	if r.place.member != nil {
		for _, peer := range r.place.member.List(ctx) {
			members = append(members, cmp.Or(peer.Name, peer.Address))
		}
	}
	older := olderServers(servers, members)
	wasAlone := r.alone
	if r.alone = len(older) == 0; r.alone && !wasAlone {
		return nil
	}
	r.raised, err = r.server.state.RaiseSchema(older)
	if err != nil {
		return errors.Trace(err)
	}
	logger := r.server.config.Logger
	switch {
	case r.raised && r.logged != nil:
		logger.Infof("schema %d of the state can be used now: all servers know it", state.SchemaVersion)
	case !r.raised && !slices.Equal(older, r.logged):
		r.logged = older
		logger.Infof("what schema %d of the state adds is refused until all servers know it: waiting for %s", state.SchemaVersion, strings.Join(older, ", "))
	}
	return nil
}
