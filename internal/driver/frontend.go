package driver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/vhostuser"
)

// Addresses in the memory map that a frontend announces, and sizes of its memory. The driver's memory is at
// guest-physical address 0, GPU i of FrontendOptions.GPUs, if it has no Addr, at gpuBase+i*gpuStride. User addresses
// are higher by userBase. Memory of the driver that is not allocated is a hole of the memfd.
const (
	userBase   = 1 << 46
	gpuBase    = 1 << 40
	gpuStride  = 1 << 40
	ramPerPair = 32 << 20  // bytes for each queue pair, times RingSize/256 if that is more than 1
	ramExtra   = 256 << 20 // bytes besides, for AllocDMA
)

// frontend is the transport of a NIC from Attach: a vhost-user frontend, whose memory plays the role of a
// guest's.
type frontend struct {
	front   *vhostuser.Frontend
	log     *slog.Logger
	mtu     int // sent to the backend, if it has PROTOCOL_F_NET_MTU; 0: not sent
	proto   uint64
	gpus    []FrontendGPU
	fd      int // memfd
	ram     []byte
	used    int
	kicks   []int // eventfds by queue; -1: not made yet
	call    int
	sl      *sleeper
	started []bool
	halted  bool

	conn    *net.UnixConn // owned by front
	peek    *os.File      // a duplicate of conn's descriptor, to detect hangup; nil before watch
	monitor sync.WaitGroup
}

// watch starts a goroutine that calls gone if the connection ends or fails before halt. The goroutine peeks at a
// duplicate descriptor: front reads the connection only when it expects an answer.
func (f *frontend) watch(gone func(error), _ func(string)) error {
	fd := -1
	err := scm.Control(f.conn, func(c int) (err error) { fd, err = scm.Dup(c); return err })
	if err != nil {
		return fmt.Errorf("watching the connection: %w", err)
	}
	f.peek = os.NewFile(uintptr(fd), "vhost-user connection")
	raw, err := f.peek.SyscallConn()
	if err != nil {
		return err
	}
	f.monitor.Go(func() {
		hungUp := false
		_ = raw.Read(func(fd uintptr) bool {
			var b [1]byte
			n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			hungUp = n == 0 && err == nil || err != nil && err != unix.EAGAIN && err != unix.EINTR
			return hungUp
		})
		if hungUp {
			gone(errHangup)
		}
	})
	return nil
}

var errHangup = fmt.Errorf("the vhost-user backend hung up: %w", unix.ENODEV)

func (f *frontend) lost() error { return errHangup }

// Attach shares memory of the driver and the GPUs' memory with a vhost-user backend, as memory regions, and starts
// the device behind the backend.
func Attach(o FrontendOptions) (*NIC, error) {
	if o.Conn == nil {
		return nil, errors.New("no connection to a vhost-user backend")
	}
	o.fill()
	f := &frontend{conn: o.Conn, front: vhostuser.NewFrontend(o.Conn), log: o.Log, mtu: o.MTU, fd: -1}
	gpus, err := f.placeGPUs(o.GPUs)
	if err == nil {
		err = f.prepare(&o.Options)
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return open(f, &o.Options, o.MAC, o.MTU, gpus)
}

func (f *frontend) prepare(o *Options) error {
	if err := f.makeRAM(o.QueuePairs*ramPerPair*max(1, o.RingSize/256) + ramExtra); err != nil {
		return err
	}
	f.started = make([]bool, 2*o.QueuePairs)
	f.kicks = slices.Repeat([]int{-1}, len(f.started))
	var err error
	if f.call, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd for calls: %w", err)
	}
	file := os.NewFile(uintptr(f.call), "call eventfd")
	if f.sl, err = newSleeper(file, 8); err != nil {
		file.Close()
	}
	return err
}

func (f *frontend) makeRAM(size int) (err error) {
	if f.fd, err = unix.MemfdCreate("vnic-driver", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return fmt.Errorf("memfd for rings and buffers: %w", err)
	}
	if err := unix.Ftruncate(f.fd, int64(size)); err != nil {
		return fmt.Errorf("memfd of %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(f.fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("sealing memfd: %w", err)
	}
	if f.ram, err = unix.Mmap(f.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("mapping memfd of %d bytes: %w", size, err)
	}
	return nil
}

func (f *frontend) placeGPUs(list []FrontendGPU) ([]GPUInfo, error) {
	var infos []GPUInfo
	for i, g := range list {
		if g.Addr == 0 {
			g.Addr = gpuBase + uint64(i)*gpuStride
		}
		if g.Size == 0 || g.Addr%PageSize != 0 || g.Addr >= userBase || g.Size > userBase-g.Addr {
			return nil, fmt.Errorf("GPU %d: %#x bytes at %#x: not a place in [0, %#x)", g.ID, g.Size, g.Addr, uint64(userBase))
		}
		f.gpus = append(f.gpus, g)
		infos = append(infos, GPUInfo{ID: g.ID, Addr: g.Addr, Size: g.Size})
	}
	return infos, nil
}

func (f *frontend) negotiate() (feats uint64, err error) {
	proto := vhostuser.ProtocolMQ | vhostuser.ProtocolReplyAck | vhostuser.ProtocolMTU | vhostuser.ProtocolConfig |
		vhostuser.ProtocolMemSlots | vhostuser.ProtocolStatus
	// A backend has no control queue: messages enable its queues, and GET_VRING_BASE stops a queue for a reset. So these
	// two features count as offered, and the backend is not asked for them.
	const provided = virtionet.FCtrlVQ | vhostuser.FeatureRingReset
	feats, f.proto, err = f.front.Negotiate(featsWanted&^provided, uint64(proto))
	if err != nil {
		return 0, fmt.Errorf("negotiation with the vhost-user backend: %w", err)
	}
	if feats, err = chooseFeatures(feats | provided); err != nil {
		return 0, err
	}
	if f.mtu > 0 && f.has(vhostuser.ProtocolMTU) {
		if err := f.front.SetMTU(uint16(f.mtu)); err != nil {
			return 0, fmt.Errorf("MTU %d: %w", f.mtu, err)
		}
	}
	return feats &^ virtionet.FCtrlVQ, f.share()
}

func (f *frontend) has(p vhostuser.ProtocolFeatures) bool { return f.proto&uint64(p) != 0 }

func (f *frontend) share() error {
	regions := []vhostuser.MemRegion{{FD: f.fd, GPA: 0, User: userBase, Size: uint64(len(f.ram))}}
	for _, g := range f.gpus {
		if g.Addr < uint64(len(f.ram)) {
			return fmt.Errorf("GPU %d at %#x: the driver's memory is there, up to %#x", g.ID, g.Addr, len(f.ram))
		}
		regions = append(regions, vhostuser.MemRegion{FD: g.FD, GPA: g.Addr, User: userBase + g.Addr, Size: g.Size})
	}
	if !f.has(vhostuser.ProtocolMemSlots) {
		if err := f.front.SetMemTable(regions); err != nil {
			return fmt.Errorf("memory table of %d regions: %w", len(regions), err)
		}
		return nil
	}
	for _, r := range regions {
		if err := f.front.AddMemory(r.FD, r.GPA, r.User, r.Size, r.Offset); err != nil {
			return fmt.Errorf("memory of %#x bytes at %#x: %w", r.Size, r.GPA, err)
		}
	}
	return nil
}

func (f *frontend) config(off int, b []byte) error {
	if !f.has(vhostuser.ProtocolConfig) {
		return errNoConfig
	}
	return f.front.GetConfig(uint32(off), b)
}

func (f *frontend) pairs() int {
	if !f.has(vhostuser.ProtocolMQ) {
		return 1
	}
	return max(1, f.front.Queues())
}

func (f *frontend) controlQueue() int { return -1 }

func (f *frontend) alloc(n int) (memory, error) {
	n = (n + PageSize - 1) &^ (PageSize - 1)
	if n > len(f.ram)-f.used {
		return memory{}, fmt.Errorf("DMA memory: %d bytes more than the %d there are: fewer or smaller rings", n, len(f.ram))
	}
	off := f.used
	if err := unix.Fallocate(f.fd, 0, int64(off), int64(n)); err != nil {
		return memory{}, fmt.Errorf("DMA memory: %d bytes: %w", n, err)
	}
	f.used += n
	return memory{b: f.ram[off:f.used:f.used], addr: uint64(off)}, nil
}

func (f *frontend) ringSize(q int, want uint16) uint16 {
	if q < 0 || q >= len(f.kicks) {
		return 0
	}
	return want
}

func (f *frontend) setupQueue(q int, r ringAddrs) (err error) {
	if f.kicks[q] < 0 {
		if f.kicks[q], err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return fmt.Errorf("eventfd for kicks of queue %d: %w", q, err)
		}
	}
	err = f.front.SetupVring(vhostuser.VringSetup{
		Index: q, Size: r.size, Desc: userBase + r.desc, Avail: userBase + r.avail, Used: userBase + r.used,
		Kick: f.kicks[q], Call: f.call,
	})
	if err != nil {
		return fmt.Errorf("queue %d: %w", q, err)
	}
	f.started[q] = true
	return nil
}

func (f *frontend) start() error {
	for q, on := range f.started {
		if !on {
			continue
		}
		if err := f.startQueue(q); err != nil {
			return err
		}
	}
	if f.has(vhostuser.ProtocolStatus) {
		const ok = statusAcknowledge | statusDriver | statusFeaturesOK | statusDriverOK
		if err := f.front.SetStatus(ok); err != nil {
			return fmt.Errorf("device status: %w", err)
		}
	}
	return nil
}

func (f *frontend) stopQueue(q int) error {
	// Drop a kick that the backend has not read: it belongs to the old ring.
	var b [8]byte
	_, _ = unix.Read(f.kicks[q], b[:])
	if _, err := f.front.GetVringBase(q); err != nil {
		return fmt.Errorf("stopping queue %d: %w", q, err)
	}
	f.started[q] = false
	return nil
}

func (f *frontend) startQueue(q int) error {
	if err := f.front.SetEnable(q, true); err != nil {
		return fmt.Errorf("enabling queue %d: %w", q, err)
	}
	return nil
}

var eventfdOne = []byte{1, 0, 0, 0, 0, 0, 0, 0}

func (f *frontend) kick(q int) { _, _ = unix.Write(f.kicks[q], eventfdOne) } // EAGAIN would mean that kicks are pending

func (f *frontend) emulated() bool { return false }

func (f *frontend) arm() (bool, error) { return false, nil }

func (f *frontend) sleeper() *sleeper { return f.sl }

// halt ends watch's goroutine, stops the queues, up to the first error (so it waits only once for a backend that
// hangs), and closes the connection. Later calls do nothing.
func (f *frontend) halt() error {
	if f.halted {
		return nil
	}
	f.halted = true
	if f.peek != nil {
		f.peek.Close()
		f.monitor.Wait()
	}
	var errs []error
	f.front.SetTimeout(limits.BackendStop.Here())
	for q, on := range f.started {
		if on && len(errs) == 0 {
			if err := f.stopQueue(q); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, f.front.Close())...)
}

func (f *frontend) close() error {
	err := f.halt()
	for _, fd := range f.kicks {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if f.sl != nil {
		_ = f.sl.close()
	}
	if f.ram != nil {
		unix.Munmap(f.ram)
	}
	if f.fd >= 0 {
		unix.Close(f.fd)
	}
	return err
}
