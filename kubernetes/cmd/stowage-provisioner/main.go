// Stowage-provisioner makes the storage that claims of a Kubernetes cluster ask for, with stowage. See
// docs/howto/kubernetes.md, and `stowage-provisioner -help`.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/juju/errors"
	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "stowage-provisioner: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flagsOf(&o)
	klog.InitFlags(flags)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return errors.Trace(err)
	case flags.NArg() > 0:
		return errors.Errorf("argument %q: there are only flags", flags.Arg(0))
	}
	if err := o.validate(); err != nil {
		return errors.Trace(err)
	}
	defer klog.Flush()
	return serve(ctx, &o)
}
