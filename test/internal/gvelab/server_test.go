package gvelab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/scm"
)

// envServer is an environment variable that makes the test's program a server of NICs, which get their connections
// over descriptor 3.
const envServer = "VNIC_GVELAB_SERVER"

func serve() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := serveUntilTerm(log); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

func serveUntilTerm(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := lab.Open(describe(), lab.Options{Log: log})
	if err != nil {
		return err
	}
	in, err := fileConn(os.NewFile(3, "connections"))
	if err != nil {
		return err
	}
	serving, end := context.WithCancelCause(context.Background())
	defer end(nil)
	var all sync.WaitGroup
	for _, p := range l.Ports() {
		conn, err := receiveConn(in)
		if err != nil {
			return err
		}
		all.Add(1)
		dma.Go(func() {
			defer all.Done()
			log.Info("a connection has ended", "cause", p.Serve(serving, conn))
		})
	}
	<-ctx.Done()
	end(errors.New("the server is told to end"))
	all.Wait()
	return nil
}

func receiveConn(in *net.UnixConn) (*net.UnixConn, error) {
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := in.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	var fds scm.FDs
	defer fds.Close()
	if err := fds.Collect(oob[:n], 1); err != nil || fds.Len() != 1 {
		return nil, fmt.Errorf("%d descriptors: %w", fds.Len(), err)
	}
	return fileConn(os.NewFile(uintptr(fds.Take(0)), "vfio-user"))
}

// fileConn returns a connection on a duplicate of f, and closes f, also with an error.
func fileConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
