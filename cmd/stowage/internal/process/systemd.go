package process

import (
	"context"
	"os"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/juju/errors"
	"github.com/juju/worker/v4"
	"github.com/juju/worker/v4/dependency"
	"gopkg.in/tomb.v2"
)

// serviceManager is the name of the manifold that reports to the service manager.
const serviceManager = "service-manager"

// hasServiceManager reports whether a service manager that understands sd_notify(3) started the
// process.
func hasServiceManager() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// notify sends a state to the service manager, if there is one. A failure is only logged: the storage
// does not depend on it.
func (p *Process) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		p.Config.Logger.Warningf("cannot notify the service manager: %v", err)
	}
}

// notifierManifold returns the manifold of a worker that says READY once the workers that serve
// requests run. As long as it runs, it answers the watchdog.
func (p *Process) notifierManifold() dependency.Manifold {
	return dependency.Manifold{
		Inputs: p.Serving,
		Start: func(_ context.Context, getter dependency.Getter) (worker.Worker, error) {
			for _, name := range p.Serving {
				if err := getter.Get(name, nil); err != nil {
					return nil, errors.Trace(err)
				}
			}
			return p.startNotifier(), nil
		},
	}
}

func (p *Process) startNotifier() worker.Worker {
	p.notify(daemon.SdNotifyReady)
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		p.Config.Logger.Warningf("the service manager's watchdog is off: %v", err)
	}
	if interval <= 0 {
		return newIdle()
	}
	return Every(p.Config.Clock, interval/watchdogMargin, func() error {
		// The report comes from the loops of the engine and of its workers: if one of them is stuck, it
		// never arrives, and the watchdog ends the process. A lost server, a full disk or a provider that
		// hangs is nothing that a restart repairs, and does not delay the report.
		p.engine.Report()
		p.notify(daemon.SdNotifyWatchdog)
		return nil
	})
}

// watchdogMargin is how often the watchdog is answered in the time that it allows.
const watchdogMargin = 3

// Reload calls f, which reads the configuration again, and lets the service manager wait for it.
func (p *Process) Reload(f func()) {
	p.notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
	defer p.notify(daemon.SdNotifyReady)
	f()
}

// idle is a worker that does nothing until it is killed.
type idle struct{ tomb tomb.Tomb }

func newIdle() *idle {
	w := &idle{}
	w.tomb.Go(func() error {
		<-w.tomb.Dying()
		return nil
	})
	return w
}

// Kill implements worker.Worker.
func (w *idle) Kill() { w.tomb.Kill(nil) }

// Wait implements worker.Worker.
func (w *idle) Wait() error { return w.tomb.Wait() }
