package vhostuser

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

type kicked struct {
	BaseDevice
	enabled bool
	worker  *Worker
	more    atomic.Int32 // how often the worker's function is still to report that chains are left; 0 or less: never
	took    chan bool    // gets a value each time the worker calls the function, if it has room
}

func (k *kicked) MaxQueues() int { return 1 }

func (k *kicked) StartQueue(v Vring) (err error) {
	k.worker, err = StartWorker(v, k.enabled, func(w *Worker) bool {
		select {
		case k.took <- true:
		default:
		}
		w.Call()
		return k.more.Add(-1) >= 0
	})
	return err
}

func (k *kicked) SetCall(_, fd int) error { return k.worker.SetCall(fd) }

func (k *kicked) EnableQueue(_ int, on bool) error {
	if k.enabled = on; k.worker != nil {
		return k.worker.Enable(on)
	}
	return nil
}

func (k *kicked) StopQueue(int) (uint32, error) {
	k.worker.Stop()
	k.worker = nil
	return 7, nil
}

func TestWorkerCallsItsFunctionForEachKick(t *testing.T) {
	testkit.CheckFDs(t)
	h := &host{recorder: newRecorder(t), t: t}
	dev := &kicked{took: make(chan bool, 100)}
	h.back = NewBackend(dev, h.Space, h.Log())
	q := &queueHost{link: h.connect(), t: t, mem: newGuest(t)}
	features, _, err := q.Negotiate(^uint64(0), ^uint64(0))
	q.must(err)
	if features&^(FeatureVersion1|1<<30) != 0 {
		t.Errorf("features %#x", features)
	}
	q.must(q.AddMemory(q.mem.fd, 0, userBase, guestSize, 0))
	q.kick, q.call = eventfd(t), eventfd(t)
	q.setup(0, q.kick, q.call)
	q.signal(q.kick) // the queue is disabled: the worker waits
	q.must(q.SetStatus(4))
	if s, err := q.GetStatus(); err != nil || s != 4 || len(dev.took) != 0 {
		t.Errorf("status %d, %v, %d calls", s, err, len(dev.took))
	}
	q.must(q.SetEnable(0, true))
	<-dev.took
	q.waitCall(q.call)
	other := eventfd(t)
	q.must(q.SetVringCall(0, other)) // while the worker is started
	q.waitCall(other)                // fired once, as an earlier call may have gone to the old eventfd
	dev.more.Store(2)
	q.signal(q.kick)
	for range 3 {
		<-dev.took
	}
	q.waitCall(other)
	dev.more.Store(1 << 30) // the worker can be stopped even if its function always reports more
	q.signal(q.kick)
	if base, err := q.GetVringBase(0); err != nil || base != 7 {
		t.Errorf("base %d, %v", base, err)
	}
	q.must(q.ResetDevice())
	q.must(q.HangUp())
}

func TestWorkerWantsAKick(t *testing.T) {
	testkit.CheckFDs(t)
	call := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
	_, err := StartWorker(Vring{Kick: -1, Call: call, Err: -1}, true, nil)
	testkit.ErrorSays(t, err, "no kick eventfd")
}

func TestListenAndServeServesOneAfterTheOther(t *testing.T) {
	testkit.CheckFDs(t)
	path := filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	log := newRecorder(t)
	go func() {
		served <- ListenAndServe(ctx, path, &kicked{took: make(chan bool, 9)}, dma.NewSpace("s", dma.NewFiles()), log.Log())
	}()
	for range 2 {
		var c net.Conn
		for {
			var err error
			if c, err = net.Dial("unix", path); err == nil {
				break
			}
			select {
			case err := <-served:
				t.Fatal(err)
			default:
			}
		}
		f := NewFrontend(c.(*net.UnixConn))
		_, _, err := f.Negotiate(FeatureVersion1, uint64(SupportedProtocol))
		testkit.OK(t, err)
		if st := testkit.Must(os.Stat(path))(t); st.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", st.Mode())
		}
		testkit.OK(t, f.Close())
	}
	cancel()
	testkit.OK(t, <-served)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	testkit.ErrorSays(t, ListenAndServe(t.Context(), filepath.Join(path, "none"), &kicked{}, nil, nil), "none")
}
