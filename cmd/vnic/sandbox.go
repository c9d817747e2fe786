package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/cmd/vnic/internal/stat"
)

// sandboxFlag is --sandbox, whose default is what mode is.
func sandboxFlag(f *pflag.FlagSet, mode *string) {
	f.StringVar(mode, "sandbox", *mode,
		"on: once guests may come, this process can start, open and dial nothing, a small one outside of it does; "+
			"log: say what would be refused; off")
}

// confined starts the process outside of the sandbox, and gives what closes the sandbox, which leaves
// this process more calls, too. Where it cannot be had that is an error if the user has asked for it,
// else a line.
func confined(of func(mode string) (broker.Config, error), mode string, asked bool, note func(string, ...any),
	more broker.Calls) (*broker.Client, func() error, error) {
	if mode == broker.Off {
		return nil, nil, nil
	}
	config, err := of(mode)
	if err != nil {
		return nil, nil, err
	}
	b, err := broker.Start(config)
	if err != nil && !asked {
		note("%v: there is no sandbox", err)
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: see 'vnic doctor', or give --sandbox off", err)
	}
	return b, func() error {
		warning, err := b.Confine(mode, more)
		if err != nil && asked {
			return fmt.Errorf("--sandbox %s: %w: see 'vnic doctor', or give --sandbox off", mode, err)
		}
		if err != nil {
			warning = fmt.Sprintf("there is none: %v", err)
		}
		if warning != "" {
			note("sandbox: %s", warning)
		}
		return nil
	}, nil
}

// unlessLost is err, or else says that the process outside of the sandbox has ended, and a context of
// broker.Client.Guard for that.
func unlessLost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, broker.ErrGone) {
		return fmt.Errorf("sandbox: %w: start this vnic again, or give --sandbox off", cause)
	}
	return err
}

// showSandbox has a process's counters tell of its sandbox, and its broker remove their socket.
func showSandbox(o *stat.Options, b *broker.Client) {
	if b == nil {
		return
	}
	o.Keep = b.Keep
	o.Sandbox = func() *stat.Sandbox {
		mode, refused := b.State()
		if mode == "" {
			return nil
		}
		return &stat.Sandbox{Mode: mode, Refused: refused}
	}
}

// noteRefused says at the end whether something was refused.
func noteRefused(b *broker.Client, note func(string, ...any)) {
	if b == nil {
		return
	}
	if n := b.Refused(); n > 0 {
		note("sandbox: %d system calls that vnic is not known to need", n)
	}
}
