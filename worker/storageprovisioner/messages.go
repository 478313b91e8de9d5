package storageprovisioner

import "github.com/stowage-io/stowage/worker/storageprovisioner/internal/plan"

// errorGroups groups the errors of entities by message. Entities with the same error, possibly
// thousands, share one line of the log.
type errorGroups struct {
	errors      []string
	keysByError map[string][]plan.Key
}

func (g *errorGroups) add(key plan.Key, err error) {
	if g.keysByError == nil {
		g.keysByError = make(map[string][]plan.Key)
	}
	message := err.Error()
	if g.keysByError[message] == nil {
		g.errors = append(g.errors, message)
	}
	g.keysByError[message] = append(g.keysByError[message], key)
}

// each calls f with the names of entities and their error: once for each entity, or once for
// all entities with the same error if there are more than plan.MaxNamed.
func (g *errorGroups) each(f func(of, err string)) {
	for _, err := range g.errors {
		keys := g.keysByError[err]
		if len(keys) > plan.MaxNamed {
			f(plan.JoinKeys(keys), err)
			continue
		}
		for _, key := range keys {
			f(key.String(), err)
		}
	}
}
