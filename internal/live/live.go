// Package live opens and closes what runs beside a command's job: the sandbox's broker, counters, capture, page, and
// output files.
package live

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report/page"
	"vnic.dev/vnic/internal/report/pcap"
	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/wire/uplink"
)

// Command has the settings of what runs beside a command's job, and from Run on the counters and the capture.
type Command struct {
	Sandbox string
	Dump    pcap.Options
	Show    stat.Options
	Page    Page
	Uplinks []uplink.Config
	More    broker.Calls // further system calls that the sandbox allows

	Counters *stat.Server // made and closed by Run
	Capture  *pcap.Pcap   // made and closed by Run; nil: no capture
	files    []*Draft     // made by File, opened and closed by Run
}

// New returns the Command for vnic's command of this name, before the command's flags are read: the sandbox is on.
func New(command string) Command {
	return Command{Sandbox: broker.On, Show: stat.Options{Command: command}}
}

// Check checks the values of --sandbox, --metrics and --http.
func (l *Command) Check() error {
	return errors.Join(broker.CheckMode(l.Sandbox), l.Show.Check(), page.CheckAddr(l.Page.addr))
}

// File adds and returns a Draft of a file that a flag names, which Run opens before the job and closes after it; it
// returns nil if name is "".
func (l *Command) File(flag, name string) *Draft {
	if name == "" {
		return nil
	}
	d := &Draft{flag: flag, name: name}
	l.files = append(l.files, d)
	return d
}

// Run calls job with a context that ends with c's context or with the broker, if there is one. Before, it completes
// o: it sets Broker and Confine, and adds Services for uplinks, counters and capture. config returns what the broker
// may do; it is not called in mode Off. Afterwards Run writes the report that --report names, if a port was recorded,
// and closes what it has opened.
func (l *Command) Run(c *cobra.Command, o *session.Common, config func(mode string) (broker.Config, error),
	job func(context.Context) error) (err error) {
	note := o.Tell
	if o.InProc {
		l.More = slices.Concat(l.More, broker.InProcess)
	}
	if o.Broker, o.Confine, err = confined(config, l.Sandbox, c.Flags().Changed("sandbox"), note, l.More); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Broker.Close()) }()
	if b := o.Broker; b != nil {
		l.Show.Keep = b.Keep
		l.Show.Sandbox = func() *stat.Sandbox {
			mode, refused := b.State()
			if mode == "" {
				return nil
			}
			return &stat.Sandbox{Mode: mode, Refused: refused}
		}
	}
	report := l.File("report", l.Page.report)
	for _, d := range l.files {
		if err := d.open(o.Broker); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.Close()) }()
	}
	l.Show.Log = o.Log
	if l.Counters, err = stat.Start(l.Show); err != nil {
		return err
	}
	defer l.Counters.Close()
	if url := l.Counters.MetricsURL(); url != "" {
		note("metrics at %s", url)
	}
	if l.Capture, err = pcap.Start(l.Dump, note); err != nil {
		return err
	}
	defer func() { _ = l.Capture.Close() }()
	end, err := l.Page.show(l.Counters, report, o.Log, note)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	var keep func(path string, dir bool) (remove func() error, err error)
	if o.Broker != nil {
		keep = o.Broker.Keep
	}
	o.Services = slices.Concat(lab.Uplinks(l.Uplinks, keep), o.Services,
		[]lab.Service{l.Counters.Watch, l.Capture.Service})
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

// confined starts the broker, and returns its client and a function that calls the client's Confine. If the broker does
// not start, or Confine fails, that is an error only if asked, which means that the user gave --sandbox; else it is a
// note. Without a broker, as in mode Off, the client and the function are nil.
func confined(configure func(mode string) (broker.Config, error), mode string, asked bool, note func(string, ...any),
	more broker.Calls) (*broker.Client, func() error, error) {
	if mode == broker.Off {
		return nil, nil, nil
	}
	config, err := configure(mode)
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
