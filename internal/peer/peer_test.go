package peer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestPayloadsAreLittleEndianWithoutPadding(t *testing.T) {
	type payload struct {
		A uint16
		_ uint16
		B uint64
	}
	v := payload{A: 0x0201, B: 0x0807060504030201}
	b := peer.Append([]byte{9}, v)
	if want := []byte{9, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}; !bytes.Equal(b, want) {
		t.Errorf("% x, want % x", b, want)
	}
	testkit.Equal(t, "decoded", peer.Decode[payload](append(b[1:], 7, 7)), v)
	for what, f := range map[string]func(){
		"short":   func() { peer.Decode[payload](b[:5]) },
		"no size": func() { peer.Append(nil, []string{"a"}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			f()
		}()
	}
}

func TestServeEnds(t *testing.T) {
	boom, enough := errors.New("boom"), errors.New("enough")
	for _, c := range []struct {
		name             string
		next, err, cause error // next: the error of the third message; if nil, that waits for interrupt
	}{
		{"closed", io.EOF, nil, nil},
		{"reset", unix.ECONNRESET, nil, nil},
		{"unread", unix.EPIPE, nil, nil},
		{"in a message", io.ErrUnexpectedEOF, io.ErrUnexpectedEOF, nil},
		{"bad", boom, boom, nil},
		{"context", nil, boom, enough},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			interrupted := make(chan struct{})
			messages := 0
			err, cause := peer.Serve(ctx, dma.NewSpace("test", dma.NewFiles()), func() { close(interrupted) }, func() error {
				if messages++; messages < 3 {
					return nil
				}
				if c.next != nil {
					return c.next
				}
				cancel(enough)
				<-interrupted
				return boom
			})
			if !errors.Is(err, c.err) || !errors.Is(cause, c.cause) || messages != 3 {
				t.Errorf("%v, %v after %d messages, want %v, %v", err, cause, messages, c.err, c.cause)
			}
		})
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	var log strings.Builder
	r := peer.Refusals{Log: slog.New(slog.NewTextHandler(&log, nil)), Protocol: "test"}
	r.End()
	testkit.Equal(t, "log of nothing", log.String(), "")
	for range peer.MaxRefusalLogs + 5 {
		r.Refused(slog.LevelWarn, "PLEASE", "error", errors.New("no"))
	}
	r.Repeated()
	r.End()
	testkit.Equal(t, "lines", strings.Count(log.String(), "\n"), peer.MaxRefusalLogs+1)
	for _, want := range []string{`level=WARN msg="test request refused" request=PLEASE error=no`,
		`msg="more test requests were refused than logged" count=6`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in\n%s", want, log.String())
		}
	}
}

// This process is the peer, too, and maps the file privately.
func TestMemoryThatThePeerDoesNotShareIsLogged(t *testing.T) {
	testkit.LeavesNothing(t)
	a, b := testkit.SocketPair(t)
	defer a.Close()
	defer b.Close()
	var log strings.Builder
	space := dma.NewSpace("test", dma.NewFiles())
	defer func() { testkit.OK(t, space.Close()) }()
	peer.WatchMemory(space, a, slog.New(slog.NewTextHandler(&log, nil)))
	add := func() int {
		f := testkit.Memfd(t, 4096)
		m := testkit.Must(unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE))(t)
		defer func() { testkit.OK(t, unix.Munmap(m)) }()
		iova := uint64(len(space.Regions())) * 4096
		testkit.OK(t, space.Add(dma.Map{IOVA: iova, Size: 4096, FD: int(f.Fd())}))
		return strings.Count(log.String(), "\n")
	}
	testkit.Equal(t, "lines", add(), 1)
	for _, want := range []string{"address=0x0 size=0x1000 file=\"/memfd:Test", fmt.Sprintf(" process=%d ", os.Getpid()),
		"share=on"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in\n%s", want, log.String())
		}
	}
	for range peer.MaxRefusalLogs {
		add()
	}
	testkit.Equal(t, "lines", strings.Count(log.String(), "\n"), peer.MaxRefusalLogs)
	peer.Unwatch(space)
	peer.WatchMemory(space, a, slog.New(slog.NewTextHandler(&log, nil)))
	peer.Unwatch(space)
	testkit.Equal(t, "lines after Unwatch", add(), peer.MaxRefusalLogs)
}

func TestWrap(t *testing.T) {
	testkit.NoError(t, peer.Wrap(nil, "ring %d", 3))
	err := peer.Wrap(io.EOF, "ring %d", 3)
	if testkit.Equal(t, "error", err.Error(), "ring 3: EOF"); !errors.Is(err, io.EOF) {
		t.Error("not the error that was wrapped")
	}
}
