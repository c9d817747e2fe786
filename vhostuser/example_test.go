package vhostuser_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/vhostuser"
)

// bell is a device with one queue, which answers kicks with calls and never reads the ring.
type bell struct {
	vhostuser.BaseDevice
	config  [8]byte
	enabled bool
	worker  *vhostuser.Worker // of the started queue
	kicks   uint32            // the ring's base, plus the number of calls of the worker's function
}

const bellFeatures = vhostuser.FeatureVersion1 | 1<<3 // bits below 24 belong to the device type

func (b *bell) Features() uint64         { return bellFeatures }
func (b *bell) ProtocolFeatures() uint64 { return uint64(vhostuser.SupportedProtocol) }
func (b *bell) MaxQueues() int           { return 1 }

func (b *bell) GetConfig(off uint32, p []byte) error {
	copy(p, b.config[min(int(off), len(b.config)):])
	return nil
}

func (b *bell) SetConfig(off uint32, p []byte) error {
	copy(b.config[min(int(off), len(b.config)):], p)
	return nil
}

func (b *bell) StartQueue(v vhostuser.Vring) (err error) {
	fmt.Printf("device: queue %d has %d descriptors at %#x\n", v.Index, v.Size, v.Desc)
	b.kicks = v.Base
	b.worker, err = vhostuser.StartWorker(v, b.enabled, func(w *vhostuser.Worker) (more bool) {
		b.kicks++
		w.Call()
		return false
	})
	return err
}

// A frontend may change its call eventfd at any time.
func (b *bell) SetCall(_, fd int) error { return b.worker.SetCall(fd) }

func (b *bell) EnableQueue(_ int, on bool) error {
	if b.enabled = on; b.worker != nil {
		return b.worker.Enable(on)
	}
	return nil
}

func (b *bell) StopQueue(int) (base uint32, err error) {
	b.worker.Stop() // after Stop the device does not touch the ring
	b.worker = nil
	return b.kicks, nil
}

// event returns an eventfd whose Read waits.
func event() *os.File {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	check(err)
	return os.NewFile(uintptr(fd), "eventfd")
}

// socketpair returns the two ends of a connection.
func socketpair() (a, b *net.UnixConn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		if ends[i], err = net.FileConn(f); err != nil {
			log.Fatal(err)
		}
		f.Close()
	}
	return ends[0].(*net.UnixConn), ends[1].(*net.UnixConn)
}

// A backend serves a bell, a device of ours, and a frontend uses it, in one process. To serve a QEMU,
// listen on a Unix socket and pass each connection to Serve; the machine's memory must be shared:
//
//	-chardev socket,id=bell,path=$XDG_RUNTIME_DIR/bell.sock
//	-object memory-backend-memfd,id=ram,size=1G,share=on -machine q35,memory-backend=ram
func Example() {
	ours, theirs := socketpair()
	space := dma.NewSpace("bell", dma.NewFiles()) // holds the frontend's memory, while a connection lasts
	served := make(chan error)
	go func() { served <- vhostuser.NewBackend(&bell{}, space, nil).Serve(context.Background(), theirs) }()

	ram, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	check(err)
	defer unix.Close(ram)
	check(unix.Ftruncate(ram, 64<<10))
	front := vhostuser.NewFrontend(ours)
	features, protocol, err := front.Negotiate(bellFeatures|vhostuser.FeatureEventIdx,
		uint64(vhostuser.ProtocolReplyAck|vhostuser.ProtocolConfig))
	check(err)
	fmt.Println("both have:", vhostuser.Features{Bits: features}, "and", vhostuser.ProtocolFeatures(protocol))
	check(front.SetMemTable([]vhostuser.MemRegion{{FD: ram, GPA: 1 << 20, User: 0, Size: 64 << 10}}))
	config := make([]byte, 4)
	check(front.SetConfig(0, []byte("ding")))
	check(front.GetConfig(0, config))
	fmt.Printf("configuration: %q\n", config)

	kick, call := event(), event()
	defer kick.Close()
	defer call.Close()
	check(front.SetupVring(vhostuser.VringSetup{
		Size: 256, Desc: 0, Avail: 4096, Used: 8192, Kick: int(kick.Fd()), Call: int(call.Fd()),
	}))
	check(front.SetEnable(0, true))
	for range 3 {
		check(binary.Write(kick, binary.NativeEndian, uint64(1)))
		var calls uint64
		check(binary.Read(call, binary.NativeEndian, &calls))
	}
	// The running queue now fires the other eventfd.
	other := event()
	defer other.Close()
	check(front.SetVringCall(0, int(other.Fd())))
	var calls uint64
	check(binary.Read(other, binary.NativeEndian, &calls))
	fmt.Println("called elsewhere:", calls)
	base, err := front.GetVringBase(0) // stops the queue
	check(err)
	fmt.Println("kicks:", base)
	front.Close()
	fmt.Println("served:", <-served)
	// Output:
	// both have: bit3|PROTOCOL_FEATURES|VERSION_1 and REPLY_ACK|CONFIG
	// configuration: "ding"
	// device: queue 0 has 256 descriptors at 0x100000
	// called elsewhere: 1
	// kicks: 3
	// served: <nil>
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
