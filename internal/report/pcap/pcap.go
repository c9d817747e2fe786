// Package pcap implements --pcap: it writes the packets that pass a lab's ports to a file or to stdout.
package pcap

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/wire/capture"
)

// Options are the values of the flags, and the command's stdout. Without a File nothing is captured.
type Options struct {
	File    string // "-": Stdout
	Payload int    // bytes of each packet's payload in the file, at most
	Ends    bool   // write a frame between two ports twice: as one port sent it, and as the other received it
	Stdout  io.Writer
}

// Flags adds the flags to f.
func (o *Options) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.File, "pcap", "", "write what passes the ports to this file, as pcapng (-: to stdout): each frame "+
		"once, with comments of where its payload lay and where it came to")
	f.BoolVar(&o.Ends, "pcap-ends", false, "have --pcap write each frame at both ends: as it was sent, and as it came")
	f.IntVar(&o.Payload, "pcap-payload", 0,
		"bytes of payload of each packet that --pcap writes, read from where it lies (default: headers only)")
}

// Check returns an error if the flags are wrong, or the file would be stdout and that is a terminal or taken: the
// command writes something else there.
func (o *Options) Check(taken bool) error {
	switch {
	case o.Payload != 0 && o.File == "":
		return errors.New("--pcap-payload without --pcap: name the file")
	case o.Ends && o.File == "":
		return errors.New("--pcap-ends without --pcap: name the file")
	case o.Payload < 0 || o.Payload > capture.MaxPayload:
		return fmt.Errorf("--pcap-payload %d: 0 to %d", o.Payload, capture.MaxPayload)
	case o.File != "-":
		return nil
	case taken:
		return errors.New("--pcap - with --json: both would go to stdout: name a file")
	}
	if f, ok := o.Stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return errors.New("--pcap -: stdout is a terminal: redirect it, or name a file")
	}
	return nil
}

// Pcap is a capture under way. A nil Pcap captures nothing.
type Pcap struct {
	c    *capture.Capture
	file string
}

// Start makes the file, unless it is stdout. It returns nil without a File. note is called at the first error of
// writing the capture.
func Start(o Options, note func(format string, args ...any)) (*Pcap, error) {
	if o.File == "" {
		return nil, nil
	}
	comment := "-tx is what a port's guest sent, with what became of it; -rx what came for a port later, as links delay " +
		"it, or from elsewhere: a frame between two ports is here once"
	if o.Ends {
		comment = "-tx is what a port's guest sent, -rx what came for it: a frame between two ports is here twice"
	}
	about := capture.Options{Payload: o.Payload, Once: !o.Ends, Comment: comment,
		Failed: func(err error) { note("--pcap %s: nothing more is captured: %v", o.File, err) }}
	p := &Pcap{file: o.File}
	var err error
	if o.File == "-" {
		// If the reader of stdout goes away, only the capture ends: without this, Go's runtime would end the process by
		// SIGPIPE.
		signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
		p.c, err = capture.New(o.Stdout, about)
	} else {
		p.c, err = capture.Create(o.File, about)
	}
	if err != nil {
		return nil, fmt.Errorf("--pcap: %w", err)
	}
	return p, nil
}

// Service is a lab.Service: it captures the ports that exist when the lab calls it.
func (p *Pcap) Service(l *lab.Lab) (io.Closer, error) {
	if p != nil {
		for _, link := range l.Switch().Links() {
			p.c.Attach(link)
		}
	}
	return p, nil
}

// Close ends the capture. It returns nil; Report has the capture's error.
func (p *Pcap) Close() error {
	if p != nil {
		_ = p.c.Close()
	}
	return nil
}

// Report is the result of a capture, and its JSON.
type Report struct {
	File string `json:"file"`
	// packets in the file; one between two ports is there twice with --pcap-ends, or if a link delays it
	Packets uint64 `json:"packets"`
	// packets that were not captured, as the file was not written fast enough, or not at all
	Missed uint64 `json:"missed"`
	Error  string `json:"error,omitempty"` // why nothing more was written
}

// Report returns the result of the capture; nil for a nil Pcap. It must be called after Close.
func (p *Pcap) Report() *Report {
	if p == nil {
		return nil
	}
	s := p.c.Stats()
	r := &Report{File: p.file, Packets: s.Packets, Missed: s.Missed}
	if err := p.c.Close(); err != nil {
		r.Error = err.Error()
	}
	return r
}

// String returns the report in one line, without the reason of a write error.
func (r *Report) String() string {
	s := fmt.Sprintf("pcap: %s, %d packets, %d not captured", r.File, r.Packets, r.Missed)
	switch {
	case r.Error != "":
		s += ": it could not be written to its end"
	case r.Missed > 0:
		s += ": it was not written fast enough"
	}
	return s
}
