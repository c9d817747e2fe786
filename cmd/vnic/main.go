// Command vnic gives QEMU guests Device Memory TCP without the hardware.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/qemu"
)

// Exit codes, besides 0.
const (
	exitFailed  = 1
	exitUsage   = 2 // wrong use
	exitMissing = 3 // the machine lacks something, which the message names with its fix
)

// usageError marks wrong use.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() { os.Exit(realMain()) }

func realMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "vnic",
		Short:         "Device Memory TCP without the hardware",
		Long:          "vnic gives a QEMU guest a NIC with header split and a fake GPU whose memory the NIC can reach.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(runCommand(), doctorCommand(), versionCommand())
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var usage usageError
	var missing *qemu.Missing
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "vnic: interrupted")
		return exitFailed
	case errors.As(err, &usage), isCobraUsage(err):
		fmt.Fprintf(os.Stderr, "vnic: %v\nSee 'vnic --help'.\n", err)
		return exitUsage
	case errors.As(err, &missing):
		fmt.Fprintln(os.Stderr, "vnic:", err)
		return exitMissing
	}
	fmt.Fprintln(os.Stderr, "vnic:", err)
	return exitFailed
}
