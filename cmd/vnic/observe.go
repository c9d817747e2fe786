package main

import (
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/cmd/vnic/internal/pcap"
	"vnic.dev/vnic/cmd/vnic/internal/stat"
	"vnic.dev/vnic/internal/lab"
)

// observers look on at the lab of a command: its counters, for `vnic stat` and --metrics, and a capture.
type observers struct {
	counters *stat.Server
	capture  *pcap.Pcap // nil: none
	services []lab.Service
}

// observe starts them before the lab is made. Without an error the caller closes them.
func observe(counters stat.Options, dump pcap.Options, log *slog.Logger,
	note func(format string, args ...any)) (*observers, error) {
	counters.Log = log
	s, err := stat.Start(counters)
	if err != nil {
		return nil, err
	}
	if s.MetricsURL() != "" {
		note("metrics at %s", s.MetricsURL())
	}
	p, err := pcap.Start(dump, note)
	if err != nil {
		s.Close()
		return nil, err
	}
	return &observers{counters: s, capture: p, services: []lab.Service{s.Watch, p.Service}}, nil
}

func (o *observers) close() {
	_ = o.capture.Close()
	o.counters.Close()
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
