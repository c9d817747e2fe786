package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/cmd/vnic/internal/pcap"
	"vnic.dev/vnic/cmd/vnic/internal/stat"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/wire/uplink"
)

// live holds what runs beside a command's lab: the sandbox, counters, a capture, a page, and files that are written at
// the end.
type live struct {
	sandbox string
	dump    pcap.Options
	show    stat.Options
	page    pageOptions
	uplinks []uplink.Config
	more    broker.Calls // system calls that the sandbox allows this process besides its own list

	files    []*draft // made by file; they are opened before the sandbox closes
	counters *stat.Server
	capture  *pcap.Pcap // nil: none
}

// newLive returns the live of a command before its flags are read.
func newLive(command string) live {
	return live{sandbox: broker.On, show: stat.Options{Command: command}}
}

// check returns what is wrong with the flags.
func (l *live) check() error {
	return errors.Join(broker.CheckMode(l.sandbox), l.show.Check(), l.page.check())
}

// file adds a file that a flag names; "": there is none. It has its name once it is committed.
func (l *live) file(flag, name string) *draft {
	if name == "" {
		return nil
	}
	d := &draft{flag: flag, name: name}
	l.files = append(l.files, d)
	return d
}

// run calls job with a context that ends when the process outside of the sandbox does. o gets the Broker, what closes
// the sandbox and what looks on at the lab; config says what the broker may do. Afterwards everything is closed and
// written, but for the capture's report.
func (l *live) run(c *cobra.Command, o *guests.Common, config func(mode string) (broker.Config, error),
	job func(context.Context) error) (err error) {
	note := o.Tell
	if o.Broker, o.Confine, err = confined(config, l.sandbox, c.Flags().Changed("sandbox"), note, l.more); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Broker.Close()) }()
	if b := o.Broker; b != nil {
		l.show.Keep = b.Keep
		l.show.Sandbox = func() *stat.Sandbox {
			mode, refused := b.State()
			if mode == "" {
				return nil
			}
			return &stat.Sandbox{Mode: mode, Refused: refused}
		}
	}
	report := l.file("report", l.page.report)
	for _, d := range l.files {
		if err := d.open(o.Broker); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.close()) }()
	}
	l.show.Log = o.Log
	if l.counters, err = stat.Start(l.show); err != nil {
		return err
	}
	defer l.counters.Close()
	if url := l.counters.MetricsURL(); url != "" {
		note("metrics at %s", url)
	}
	if l.capture, err = pcap.Start(l.dump, note); err != nil {
		return err
	}
	defer func() { _ = l.capture.Close() }()
	shown, err := l.page.show(l.counters, report, o.Log, note)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shown.close()) }()
	o.Services = slices.Concat(uplinks(l.uplinks, o.Broker), o.Services,
		[]lab.Service{l.counters.Watch, l.capture.Service})
	ctx, cancel := o.Broker.Guard(c.Context())
	defer cancel()
	err = job(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, broker.ErrGone) {
		err = fmt.Errorf("sandbox: %w: start this vnic again, or give --sandbox off", cause)
	}
	if o.Broker != nil && o.Broker.Refused() > 0 {
		note("sandbox: %d system calls that vnic is not known to need", o.Broker.Refused())
	}
	return err
}

// results is where a command's results go: to stderr, when its capture has stdout.
func results(c *cobra.Command, dump *pcap.Options, asJSON bool) (io.Writer, error) {
	out := c.OutOrStdout()
	if dump.Stdout = out; dump.File == "-" {
		out = c.ErrOrStderr()
	}
	return out, misuse(c, dump.Check(asJSON))
}

// logTo is a log of what is at least as grave as level; verbose: of everything.
func logTo(w io.Writer, level slog.Level, verbose bool) *slog.Logger {
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// timeOfDay is how messages of commands that run for long begin.
func timeOfDay() string { return time.Now().Format(time.TimeOnly) }
