package process

import (
	"fmt"
	"net/http"

	"github.com/juju/errors"
)

// HealthRoutes adds the requests by which a supervisor asks how the process is: /livez is answered
// with 200 as long as the process serves requests at all, /readyz with 200 while it can do its work,
// and with 503 otherwise. The reason is shown only if the requests come from the host's operator.
//
// /healthz is /livez by the name that older supervisors ask for. They restart what fails it, and a
// restart does not help a process that waits for its server or for etcd.
func (p *Process) HealthRoutes(mux *http.ServeMux, showReason bool) {
	for _, path := range []string{"/livez", "/healthz"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "ok")
		})
	}
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		err := p.ready()
		switch {
		case err == nil:
			fmt.Fprintln(w, "ok")
		case showReason:
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
		default:
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
}

func (p *Process) ready() error {
	select {
	case <-p.tomb.Dying():
		return errors.New("the process is stopping")
	default:
	}
	if p.Ready == nil {
		return nil
	}
	return p.Ready()
}
