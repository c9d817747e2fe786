package devmemtool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
)

// Applet runs the tool in a guest, and returns its exit status. SIGINT and SIGTERM interrupt it.
func Applet(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills the process, which may still wait for stdin
	return Main(ctx, args, Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, Open)
}

// Main runs the tool with the arguments after its name, and returns its exit status.
func Main(ctx context.Context, args []string, std Stdio, open Opener) int {
	o, err := parse(args, std.Out)
	if errors.Is(err, errHelp) {
		return exitDone
	}
	if err != nil {
		_, _ = fmt.Fprintf(std.Err, "devmem: %v\nSee 'devmem -h'.\n", err)
		return exitUsage
	}
	t := &tool{options: o, std: std}
	if err := t.run(ctx, open); err != nil {
		var use usageError
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("interrupted: %w", err)
		}
		_, _ = fmt.Fprintf(std.Err, "devmem: %v\n", err)
		if errors.As(err, &use) {
			return exitUsage
		}
		return exitFailed
	}
	return exitDone
}

type usageError struct{ error }

type tool struct {
	*options
	std     Stdio
	dev     *Device
	gpuSize uint64
	undo    []func() error // called in reverse order at the end of run
}

func (t *tool) run(ctx context.Context, open Opener) (err error) {
	if t.dev, err = open(ctx, Request{Interface: t.iface, Address: t.ours()}); err != nil {
		return fmt.Errorf("open %s: %w", t.iface, err)
	}
	t.later("close "+t.dev.Name, t.dev.Close)
	defer func() {
		for i := len(t.undo) - 1; i >= 0; i-- {
			if uerr := t.undo[i](); uerr != nil && err == nil {
				err = uerr
			}
		}
	}()
	if err := t.pickGPU(); err != nil {
		return err
	}
	t.say("using %s: %d receive queues, GPU %d", t.dev.Name, t.dev.Queues, t.gpu)
	if t.send {
		return t.sendAll(ctx)
	}
	return t.receiveAll(ctx)
}

func (t *tool) say(format string, args ...any) { _, _ = fmt.Fprintf(t.std.Err, format+"\n", args...) }

func (t *tool) later(what string, f func() error) {
	t.undo = append(t.undo, func() error {
		if err := f(); err != nil && !errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func (t *tool) pickGPU() error {
	if len(t.dev.GPUs) == 0 {
		return fmt.Errorf("%s reaches no GPU: %w", t.dev.Name, syscall.ENODEV)
	}
	if t.gpu < 0 {
		t.gpu = t.dev.GPUs[0].ID
	}
	var ids []string
	for _, g := range t.dev.GPUs {
		if g.ID == t.gpu {
			t.gpuSize = g.Size
			return nil
		}
		ids = append(ids, strconv.Itoa(g.ID))
	}
	return usageError{fmt.Errorf("-g: no GPU %d: there are %s", t.gpu, strings.Join(ids, ", "))}
}

// numPages is ncdevmem's NUM_PAGES: a buffer has at most so many pages.
const numPages = 16000

func (t *tool) register() (devmem.Buffer, error) {
	buf, err := t.dev.Register(t.gpu, 0, min(numPages*devmem.PageSize, t.gpuSize&^(devmem.PageSize-1)))
	if err != nil {
		return nil, err
	}
	t.later("close buffer", buf.Close)
	return buf, nil
}

// bound makes the tool close a binding at the end, and wait, at most limits.Unbind, until its memory is unused.
func (t *tool) bound(b devmem.Binding) {
	t.say("got dmabuf id=%d", b.ID())
	t.later("unbind", func() error {
		if err := b.Close(); err != nil {
			return err
		}
		select {
		case <-b.Done():
			return nil
		case <-time.After(limits.Unbind.Here()):
			return fmt.Errorf("memory still in use after %v", limits.Unbind.Here())
		}
	})
}

func (t *tool) untilPeer(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.peer == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, t.peer, fmt.Errorf("(-w %v) %w", t.peer, os.ErrDeadlineExceeded))
}

// using sets the stall limit of a connection, and makes the tool close it: by a reset when ctx ends, and at the end of
// the run by a reset unless *whole is true then.
func (t *tool) using(ctx context.Context, c devmem.Conn, whole *bool) {
	c.SetStallLimit(t.stall)
	abort := func() error {
		_ = c.SetLinger(0)
		return c.Close()
	}
	stop := context.AfterFunc(ctx, func() { _ = abort() })
	t.later("close connection", func() error {
		stop()
		if *whole {
			return c.Close()
		}
		return abort()
	})
}
