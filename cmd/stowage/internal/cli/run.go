package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/juju/clock"
	"github.com/juju/errors"
	"github.com/juju/loggo"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/stowage-io/stowage/api/user"
	"github.com/stowage-io/stowage/cmd/stowage/internal/agent"
	"github.com/stowage-io/stowage/cmd/stowage/internal/datadir"
	"github.com/stowage-io/stowage/cmd/stowage/internal/plugins"
	"github.com/stowage-io/stowage/cmd/stowage/internal/process"
	"github.com/stowage-io/stowage/cmd/stowage/internal/spec"
	"github.com/stowage-io/stowage/cmd/stowage/internal/table"
	"github.com/stowage-io/stowage/storage"
	"github.com/stowage-io/stowage/worker/metricsserver"
	"github.com/stowage-io/stowage/worker/storageprovisioner"
)

// processFlags are the flags of all commands that run workers.
type processFlags struct {
	providerFlags
	logLevel string
	logForm  string
	retry    storageprovisioner.RetryPolicy
	resync   time.Duration
	limits   []string
	calls    []string
	rates    []string
	metrics  string
	path     string
}

func (f *processFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.logLevel, "log-level", "INFO", "log level: TRACE, DEBUG, INFO, WARNING or ERROR")
	cmd.Flags().StringVar(&f.logForm, "log-format", logText, "form of log messages: text, or json for one object a line")
	f.providerFlags.addTo(cmd)
	cmd.Flags().DurationVar(&f.retry.Min, "retry-min", 30*time.Second,
		"delay before the first retry of a failed operation; doubles with each further failure, up to --retry-max")
	cmd.Flags().DurationVar(&f.retry.Max, "retry-max", 0, "longest delay before a retry (default 30m0s, or --retry-min if that is longer)")
	cmd.Flags().IntVar(&f.retry.CreateThreshold, "create-threshold", 0,
		"failures in a row after which creating, attaching or growing is given up until something changes; 0: never")
	cmd.Flags().IntVar(&f.retry.RemoveThreshold, "remove-threshold", 0,
		"the same for detaching and destroying")
	cmd.Flags().StringArrayVar(&f.limits, "time-limit", nil,
		"time limit of an operation, as `OPERATION=TIME`, such as create=2h; 0s: no limit; defaults: 1h for create, resize and destroy, 30m for attach and detach; may be repeated")
	cmd.Flags().DurationVar(&f.resync, "resync", 15*time.Minute,
		"time between two checks of everything, which notice changes without an event, such as a repaired disk; up to a fifth less, at random")
	cmd.Flags().StringArrayVar(&f.calls, "max-calls", nil,
		"concurrent calls of a provider that allows several, as `PROVIDER=CALLS`, such as loop=1; may be repeated")
	cmd.Flags().StringArrayVar(&f.rates, "rate-limit", nil,
		"calls of a provider that begin in a second, as `PROVIDER=RATE`, such as disks=0.5; may be repeated")
	cmd.Flags().StringVar(&f.metrics, "metrics", "", "serve Prometheus metrics on `ADDRESS`, such as localhost:9163, to any client that can connect")
	cmd.Flags().StringVar(&f.path, "metrics-path", metricsserver.DefaultPath, "`PATH` of the metrics")
}

// check returns an error if a flag is not valid. Otherwise it returns the configuration without
// its logger. environ is that of the providers.
func (f *processFlags) check(environ storage.ProviderEnviron) (process.Config, error) {
	if _, ok := loggo.ParseLevel(f.logLevel); !ok {
		return process.Config{}, errors.WithType(errors.Errorf("--log-level %q is not known: write TRACE, DEBUG, INFO, WARNING or ERROR", f.logLevel), errUsage)
	}
	if f.logForm != logText && f.logForm != logJSON {
		return process.Config{}, errors.WithType(errors.Errorf("--log-format %q is not known: write text or json", f.logForm), errUsage)
	}
	if f.retry.Min <= 0 {
		return process.Config{}, errors.WithType(errors.Errorf("--retry-min %s is not a time to wait: write 30s or 5m", f.retry.Min), errUsage)
	}
	if f.retry.Max != 0 && f.retry.Max < f.retry.Min {
		return process.Config{}, errors.WithType(errors.Errorf("--retry-max %s is less than --retry-min %s", f.retry.Max, f.retry.Min), errUsage)
	}
	if f.retry.CreateThreshold < 0 || f.retry.RemoveThreshold < 0 {
		return process.Config{}, errors.WithType(errors.New("--create-threshold and --remove-threshold are numbers of failures, or 0"), errUsage)
	}
	if f.metrics != "" {
		of := metricsserver.Config{Address: f.metrics, Path: f.path, Gatherer: prometheus.NewRegistry()}
		if err := of.Validate(); err != nil {
			return process.Config{}, errors.WithType(errors.Errorf("--metrics %q --metrics-path %q: %s", f.metrics, f.path, err), errUsage)
		}
	}
	if f.resync <= 0 {
		return process.Config{}, errors.WithType(errors.Errorf("--resync %s is not a time to wait: write 15m or 1h", f.resync), errUsage)
	}
	limits, err := timeLimits(f.limits)
	if err != nil {
		return process.Config{}, err
	}
	registry, err := f.providerFlags.open(environ)
	if err != nil {
		return process.Config{}, err
	}
	config := process.Config{
		Registry:           registry,
		Clock:              clock.WallClock,
		Retry:              f.retry,
		TimeLimits:         limits,
		MaxConcurrentCalls: map[storage.ProviderType]int{},
		RateLimiters:       map[storage.ProviderType]storage.RateLimiter{},
		Resync:             f.resync,
		MetricsAddress:     f.metrics,
		MetricsPath:        f.path,
	}
	err = eachOfProvider(f.calls, "--max-calls", registry, func(p storage.ProviderType, text string) error {
		calls, err := strconv.Atoi(text)
		if err != nil || calls < 1 {
			return errors.New("write a provider and a number of calls, as in loop=1")
		}
		config.MaxConcurrentCalls[p] = calls
		return nil
	})
	if err != nil {
		return process.Config{}, err
	}
	return config, eachOfProvider(f.rates, "--rate-limit", registry, func(p storage.ProviderType, text string) error {
		rate, _ := strconv.ParseFloat(text, 64)
		limiter, err := storageprovisioner.NewRateLimiter(clock.WallClock, rate, int(max(1, rate)))
		if err != nil {
			return errors.New("write a provider and a number of calls per second, as in disks=0.5")
		}
		config.RateLimiters[p] = limiter
		return nil
	})
}

// eachOfProvider calls set for each value of a flag, PROVIDER=TEXT.
func eachOfProvider(values []string, flag string, registry storage.ProviderRegistry, set func(storage.ProviderType, string) error) error {
	for _, value := range values {
		name, text, _ := strings.Cut(value, "=")
		err := set(storage.ProviderType(name), text)
		if err == nil {
			_, err = registry.StorageProvider(storage.ProviderType(name))
		}
		if err != nil {
			return errors.WithType(errors.Errorf("%s %q: %s", flag, value, err), errUsage)
		}
	}
	return nil
}

// The forms of log messages.
const (
	logText = "text"
	logJSON = "json"
)

// startLogging makes all messages of the process go to the standard error, and returns the logger
// of a module.
func (c *common) startLogging(module, level, form string) (*loggo.Logger, *logWriter, error) {
	logs := &logWriter{out: c.Stderr, json: form == logJSON}
	if _, err := loggo.ReplaceDefaultWriter(logs); err != nil {
		return nil, nil, errors.Trace(err)
	}
	parsed, _ := loggo.ParseLevel(level) // it has been checked
	loggo.DefaultContext().ApplyConfig(loggo.Config{"": parsed})
	logger := loggo.GetLogger(module)
	return &logger, logs, nil
}

// runFlags are the flags of an agent with a state of its own.
type runFlags struct {
	processFlags
	specFile string
	initial  string
	progress bool
	manager  bool
	csi      csiFlags
	docker   dockerFlags
}

func (c *common) runCommand() *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent",
		Long: `Runs the agent in the foreground until it is interrupted. Storage stays in place when
the agent stops. When it starts, it attaches again whatever is no longer attached, for
instance after a reboot.

With --spec, a file is applied first, at each start: see "stowage apply --help". Storage that
was removed and is still in the file is then made again, empty. With --initial-spec, the
file is applied only until the agent has had storage, whatever became of it since.

SIGHUP applies the file of --spec again, unless the standard input is a terminal: then SIGHUP
ends the agent, as the terminal does when it is closed. A file that is not valid changes
nothing, and the log says where it is wrong.

SIGINT and SIGTERM stop the agent: operations that run are interrupted, and finished or
repeated at the next start. The second of these signals ends it at once, which is safe.

With --manager, the agent also provisions the environment's storage, which is not bound
to a machine, and attaches it to this machine. Programs of yours provide its volumes:
--provider NAME=PATH adds a provider called NAME that runs the program at PATH, and a
pool of the same name. With --plugins-dir, each file *.yaml in a directory
describes a provider: a program, or a CSI driver on this machine. Their pages are
docs/reference/program-provider.md and docs/reference/csi-provider.md.

With --csi-endpoint, the agent is also a CSI driver, csi.stowage.io: an orchestrator
that runs as root on this machine makes volumes here and uses them.

With --docker-plugin, the agent is a volume plugin of Docker and Podman, called stowage:
"docker run -v data:/data --volume-driver stowage" makes the volume and uses it.`,
		Example: `  stowage run --spec /etc/stowage.yaml
  stowage run --initial-spec first.yaml --metrics localhost:9163`,
		Args: noArgs("name a file to apply with --spec"),
		RunE: runE(func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd.Context(), flags)
		}),
	}
	flags.addTo(cmd)
	cmd.Flags().StringVar(&flags.specFile, "spec", "", "file to apply at each start")
	cmd.Flags().StringVar(&flags.initial, "initial-spec", "", "file to apply at the first start")
	cmd.MarkFlagsMutuallyExclusive("spec", "initial-spec")
	cmd.Flags().BoolVar(&flags.progress, "progress", false, "show the storage on the standard output until all of it is attached")
	cmd.Flags().BoolVar(&flags.manager, "manager", false, "provision the environment's storage, too")
	flags.csi.addAll(cmd)
	flags.docker.addTo(cmd)
	return cmd
}

func (c *common) run(ctx context.Context, flags runFlags) error {
	dataDir, socket, err := c.paths()
	if err != nil {
		return err
	}
	environ, orchestrator := machineEnviron(dataDir), &storage.LateOrchestrator{}
	environ.Orchestrator = orchestrator
	config, err := flags.check(environ)
	if err != nil {
		return err
	}
	config.Orchestrator = orchestrator
	csi, err := flags.csi.check(socket)
	if err != nil {
		return err
	}
	others := []string{socket}
	if csi != nil {
		others = append(others, csi.SocketPath)
	}
	docker, err := flags.docker.check(others...)
	if err != nil {
		return err
	}
	var applyArgs *user.ApplyArgs
	var names, toDetach []string
	if path := orElse(flags.specFile, flags.initial); path != "" {
		args, file, err := c.readSpec(ctx, path)
		if err != nil {
			return err
		}
		applyArgs = &args
		if flags.initial != "" {
			file = &spec.File{} // what there is may have little to do with the file
		}
		for _, s := range file.Storage {
			names = append(names, s.Name)
			if s.Detached {
				for _, instance := range s.Instances() {
					toDetach = append(toDetach, instance.Name)
				}
			}
		}
	}
	lacks, err := checkPrivileges()
	if err != nil {
		return err
	}
	logger, logs, err := c.startLogging("stowage.agent", flags.logLevel, flags.logForm)
	if err != nil {
		return err
	}
	config.Logger, config.Audit = logger, logs.audit
	for _, lack := range lacks {
		logger.Warningf("%s", lack)
	}

	reloads := c.reloads(flags.specFile) // from now on, so that none comes too early
	a, err := agent.New(agent.Config{
		Config:     config,
		DataDir:    dataDir,
		SocketPath: socket,
		Manager:    flags.manager,
		CSI:        csi,
		Docker:     docker,
		Spec:       applyArgs,
		SpecOnce:   flags.initial != "",
	})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, a.Kill)
	defer stop()
	defer c.startReloading(ctx, reloads, a, flags.specFile)()
	if flags.progress {
		c.showProgress(ctx, a, names, attached.orDetached(toDetach), logs)
	}
	return a.Wait()
}

// reloads returns a channel on which each SIGHUP arrives, or nil if SIGHUP ends the agent.
func (c *common) reloads(file string) <-chan struct{} {
	if _, ok := terminal(c.Stdin); ok || file == "" || file == "-" || c.OnHangup == nil {
		return nil
	}
	reloads := make(chan struct{}, 1)
	c.OnHangup(func() {
		select {
		case reloads <- struct{}{}:
		default: // one is due already
		}
	})
	return reloads
}

// startReloading applies a file again whenever the channel says so, until the function that it returns
// is called.
func (c *common) startReloading(ctx context.Context, reloads <-chan struct{}, a *agent.Agent, file string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-reloads:
				a.Reload(func() { c.reload(ctx, a, file) })
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// reload applies a file, and logs what that changes.
func (c *common) reload(ctx context.Context, a *agent.Agent, file string) {
	logger := a.Process.Config.Logger
	args, _, err := c.readSpec(ctx, file)
	var result user.ApplyResult
	if err == nil {
		result, err = a.ApplyFile(ctx, args, true)
	}
	if err != nil {
		logger.Errorf("SIGHUP: the file is not applied, and nothing is changed: %v", err)
		return
	}
	changed := 0
	for _, change := range result.Changes {
		switch change.Action {
		case user.ActionLeave:
		case user.ActionKeep:
			logger.Warningf("%s", agent.Kept(args.File, change))
		default:
			changed++
			logger.Infof("%s: %s: %s (%s)", args.File, changedName(change), change.Action, change.Detail)
		}
	}
	logger.Infof("SIGHUP: applied %s: %d changes", args.File, changed)
}

// machineEnviron is where the providers of an agent are opened.
func machineEnviron(dataDir string) storage.ProviderEnviron {
	return storage.ProviderEnviron{Scope: storage.ScopeMachine, StorageDir: datadir.Dir(dataDir).Storage()}
}

// timeLimits returns the time limits: the defaults, and those of the flags.
func timeLimits(flags []string) (storageprovisioner.TimeLimits, error) {
	limits := storageprovisioner.TimeLimits{
		Create: time.Hour, Resize: time.Hour, Destroy: time.Hour, Attach: 30 * time.Minute, Detach: 30 * time.Minute,
	}
	byOperation := map[string]*time.Duration{
		"create": &limits.Create, "resize": &limits.Resize, "destroy": &limits.Destroy,
		"attach": &limits.Attach, "detach": &limits.Detach,
	}
	for _, flag := range flags {
		operation, text, _ := strings.Cut(flag, "=")
		limit, err := time.ParseDuration(text)
		if byOperation[operation] == nil || err != nil || limit < 0 {
			return limits, errors.WithType(errors.Errorf(
				"--time-limit %q: write an operation (create, attach, detach, destroy, resize) and a time, as in create=2h", flag), errUsage)
		}
		*byOperation[operation] = limit
	}
	return limits, nil
}

// providerFlags are the flags of commands that use providers other than the built-in ones.
type providerFlags struct {
	programs   []string
	pluginsDir string
}

func (f *providerFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.programs, "provider", nil, "provider of environment volumes and the program that implements it, as `NAME=PATH`; may be repeated")
	cmd.Flags().StringVar(&f.pluginsDir, "plugins-dir", "", "directory with a file NAME.yaml for each further provider")
}

// hasAny reports whether there are other providers than the built-in ones.
func (f *providerFlags) hasAny() bool { return len(f.programs) > 0 || f.pluginsDir != "" }

// open opens all providers.
func (f *providerFlags) open(environ storage.ProviderEnviron) (storage.ProviderRegistry, error) {
	registry, err := plugins.New(environ)
	if err != nil {
		return nil, errors.Trace(err)
	}
	for _, flag := range f.programs {
		err := errors.New("write NAME=PATH")
		if name, path, ok := strings.Cut(flag, "="); ok {
			err = registry.AddProgram(name, path)
		}
		if err != nil {
			return nil, errors.WithType(errors.Errorf("--provider %q: %s", flag, err), errUsage)
		}
	}
	if f.pluginsDir != "" {
		if err := registry.AddDir(f.pluginsDir); err != nil {
			return nil, errors.WithType(errors.Annotate(err, "--plugins-dir"), errUsage)
		}
	}
	return registry, nil
}

// showProgress shows storage until it is attached or has failed. It returns no error,
// since the agent does not depend on it.
func (c *common) showProgress(ctx context.Context, a *agent.Agent, names []string, goal goal, logs *logWriter) {
	d := newDisplay(c.Stdout, true)
	if live, ok := d.(*liveDisplay); ok {
		if _, ok := terminal(c.Stderr); ok {
			logs.setOutput(live.live)
		}
	}
	watch := func(ctx context.Context, names []string, each func(user.Event) error) error {
		return a.Watch(ctx, user.WatchArgs{Names: names}, each)
	}
	err := wait(ctx, watch, names, 0, goal, d)
	logs.setOutput(c.Stderr) // before anything is written below the table
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		fmt.Fprintln(c.Stdout, table.Escape(err.Error()))
	}
	fmt.Fprintln(c.Stdout, "Ctrl-C stops the agent and leaves the storage in place")
}
