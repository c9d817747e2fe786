// Command vnic gives QEMU guests Device Memory TCP without the hardware.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/atexit"
	"vnic.dev/vnic/internal/broker"
	_ "vnic.dev/vnic/internal/guestbin" // embeds the guest program
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limit"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/spare"
)

const (
	exitFailed  = 1
	exitUsage   = 2
	exitMissing = 3   // the machine lacks something
	exitTimeout = 124 // as with timeout(1)

	exitPipe = 128 + int(syscall.SIGPIPE) // as shells report it
)

func main() {
	if broker.Is(os.Args) {
		os.Exit(broker.Main())
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	if !spare.Await(func() { cancel(errInterrupted) }) {
		return
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup(1) ignores it
		signal.Notify(signals, syscall.SIGHUP)
	}
	// Otherwise a write to stdout or stderr without a reader would end this process.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go interrupts(signals, cancel, func() {
		atexit.Run()
		fmt.Fprintln(os.Stderr, "vnic: interrupted again: gone at once")
		os.Exit(exitFailed) // the kernel kills child processes (PR_SET_PDEATHSIG)
	})
	status := realMain(ctx, backendArgs(os.Args), os.Stdout, os.Stderr)
	os.Exit(status)
}

var errInterrupted = errors.New("interrupted")

// impatience is the time after the first signal during which further signals have no effect: timeout(1) may repeat a
// signal.
const impatience = time.Second

// interrupts cancels the command at the first signal, and calls now at one more than impatience later.
func interrupts(signals <-chan os.Signal, cancel context.CancelCauseFunc, now func()) {
	var first time.Time
	for range signals {
		switch {
		case first.IsZero():
			first = time.Now()
			cancel(errInterrupted)
		case time.Since(first) > impatience:
			now()
			return
		}
	}
}

// more makes commands that only some builds have.
var more []func() *cobra.Command

func newRoot() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "vnic",
		Short: "Device Memory TCP without the hardware",
		Long: `vnic gives a QEMU guest what Device Memory TCP needs and almost nobody owns: a NIC with header split and flow
steering, and a GPU whose memory the NIC can reach. Both are emulated; the payload goes from GPU memory to GPU memory.`,
		Example: `  vnic run                  two QEMU guests: GPU to GPU, with the proof of where the bytes went
  vnic run --guest inproc   the same without QEMU, in a second
  vnic boot -- ./test       a program of yours in a guest with such a NIC and GPU
  vnic doctor               what this machine has, and what the first run will download`,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return beginMachine(c) },
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if version {
				return printVersion(c.OutOrStdout())
			}
			return c.Help()
		},
	}
	root.Flags().BoolVar(&version, "version", false, "print the version, as the command of that name")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{c.CommandPath(), err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpTemplate(helpTemplate)
	for _, g := range []struct {
		name     string
		commands []*cobra.Command
	}{
		{"Run", []*cobra.Command{runCommand(), bootCommand(), serveCommand()}},
		{"Use", []*cobra.Command{allreduceCommand(), loadCommand(), blockCommand(), rdmaCommand()}},
		{"Judge", []*cobra.Command{selftestCommand(), benchCommand(), junitCommand()}},
		{"Look", []*cobra.Command{labCommand(), statCommand(), doctorCommand()}},
		{"Rest", []*cobra.Command{imageCommand(), qemuCommand(), gpuFDCommand(), cacheCommand(), versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.name, Title: g.name + ":"})
		for _, c := range g.commands {
			c.GroupID = g.name
			root.AddCommand(c)
		}
	}
	root.SetHelpCommandGroupID("Rest")
	for _, c := range more {
		root.AddCommand(c())
	}
	inOrder(root.Commands())
	values.Complete(root)
	return root
}

// inOrder makes the help of each command list its flags in the order of their definition.
func inOrder(commands []*cobra.Command) {
	for _, c := range commands {
		c.Flags().SortFlags = false
		inOrder(c.Commands())
	}
}

func realMain(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if asksCapabilities(args) {
		args = []string{"serve", capabilitiesFlag}
	}
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	helped := keepHelpError(root)
	c, err := root.ExecuteContextC(ctx)
	s := spare.Take()
	defer s.Dismiss()
	if err == nil {
		err = *helped
	}
	if err == nil {
		return 0
	}
	var usage usageError
	var missing *assets.Missing
	var memory *lab.MemoryError
	var status exitStatus
	var late *limit.Error
	again, record, byKVM := spare.StoppedByKVM(err)
	switch {
	case context.Cause(ctx) != nil: // whatever err is
		complain(stderr, errInterrupted)
		return exitFailed
	case errors.As(err, &late): // whatever else err is
		complain(stderr, late)
		return exitTimeout
	case byKVM && s != nil:
		complain(stderr, errors.New(again))
		status, err := s.TakeOver(record, ctx.Done())
		if err != nil {
			complain(stderr, err)
		}
		return status
	case byKVM:
		complain(stderr, fmt.Errorf("%w\nwithout KVM, guests run slower: --accel tcg", err))
		return exitFailed
	case errors.As(err, &status):
		return int(status)
	case readerGone(err):
		return exitPipe
	case errors.As(err, &usage):
		complain(stderr, fmt.Errorf("%w%s\nsee '%s --help'", err, values.Meant(c, err), usage.command))
		return exitUsage
	case isCobraUsage(err):
		complain(stderr, fmt.Errorf("%w%s\nsee '%s --help'", err, values.Meant(c, err), c.CommandPath()))
		return exitUsage
	case errors.As(err, &missing), errors.As(err, &memory), errors.Is(err, guestimages.ErrNoProgram):
		complain(stderr, err)
		return exitMissing
	}
	complain(stderr, err)
	return exitFailed
}

// keepHelpError returns a pointer to the error of the last print of a help; cobra ignores that error.
func keepHelpError(root *cobra.Command) *error {
	help, kept := root.HelpFunc(), new(error)
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		var text strings.Builder
		out := c.OutOrStdout()
		c.SetOut(&text)
		help(c, args)
		c.SetOut(out)
		_, *kept = io.WriteString(out, text.String())
	})
	return kept
}

// readerGone reports whether an error means that stdout is a pipe without a reader.
func readerGone(err error) bool {
	var p *os.PathError
	return errors.As(err, &p) && p.Path == os.Stdout.Name() && errors.Is(p.Err, syscall.EPIPE)
}

// complain prints at most so many lines, and bytes of each: an error may have output of guests.
const (
	complaintLines = 40
	complaintWidth = 1000
)

func complain(w io.Writer, err error) {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	if cut := len(lines) - complaintLines; cut > 0 {
		lines = append(lines[:complaintLines], fmt.Sprintf("(%d more lines)", cut))
	}
	for i, l := range lines {
		l = agent.Plain(strings.ReplaceAll(l, "\t", "  ")) // may contain text from a guest
		if len(l) > complaintWidth {
			l = strings.ToValidUTF8(l[:complaintWidth], "") + "..."
		}
		if i == 0 {
			fmt.Fprintln(w, show.Red(w, "vnic:"), l)
		} else {
			fmt.Fprintln(w, "  "+l)
		}
	}
}
