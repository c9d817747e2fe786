package vhostuser_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/vhostuser"
)

// bell is a device with one queue and 8 bytes of configuration. It answers each kick with a call and
// never looks into the ring: package virtq does that, with the addresses of the Vring.
type bell struct {
	status uint8
	config [8]byte
	kick   *os.File      // of the started queue, as what follows
	kicks  uint32        // so many were taken: of the goroutine
	ended  chan struct{} // closed by the goroutine
	mu     sync.Mutex
	call   *os.File // under mu, nil: none; the frontend may change it at any time
}

const bellFeatures = vhostuser.FeatureVersion1 | 1<<3 // the lower bits are the device type's own

func (b *bell) Features() uint64         { return bellFeatures }
func (b *bell) ProtocolFeatures() uint64 { return uint64(vhostuser.SupportedProtocol) }
func (b *bell) SetFeatures(uint64) error { return nil }
func (b *bell) MaxQueues() int           { return 1 }
func (b *bell) MTU(uint16) error         { return nil } // of a network device
func (b *bell) Status() uint8            { return b.status }
func (b *bell) SetStatus(s uint8) error  { b.status = s; return nil }
func (b *bell) Reset() error             { b.status = 0; return nil }
func (b *bell) MemoryChanged() error     { return nil }
func (b *bell) Disconnected()            {}

func (b *bell) GetConfig(off uint32, p []byte) error {
	copy(p, b.config[min(int(off), len(b.config)):])
	return nil
}

func (b *bell) SetConfig(off uint32, p []byte) error {
	copy(b.config[min(int(off), len(b.config)):], p)
	return nil
}

// StartQueue starts the queue's goroutine. Eventfds are non-blocking, so Close ends a Read that waits.
func (b *bell) StartQueue(v vhostuser.Vring) error {
	fmt.Printf("device: queue %d has %d descriptors at %#x\n", v.Index, v.Size, v.Desc)
	b.kick, b.kicks, b.ended = os.NewFile(uintptr(v.Kick), "kick"), v.Base, make(chan struct{})
	b.setCall(v.Call)
	go func() {
		defer close(b.ended)
		for count := make([]byte, 8); ; {
			if _, err := b.kick.Read(count); err != nil {
				return
			}
			b.kicks++
			b.ring()
		}
	}()
	return b.SetErr(v.Index, v.Err)
}

// ring calls the driver.
func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.call != nil {
		_ = binary.Write(b.call, binary.NativeEndian, uint64(1))
	}
}

// setCall has the queue call by another eventfd; -1 is none.
func (b *bell) setCall(fd int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.call != nil {
		b.call.Close()
	}
	if b.call = nil; fd >= 0 {
		b.call = os.NewFile(uintptr(fd), "call")
	}
}

func (b *bell) SetCall(_, fd int) error {
	b.setCall(fd)
	b.ring() // a call that was due may have gone to the old one
	return nil
}

func (b *bell) SetErr(_, fd int) error { // the descriptor is ours, and not used
	if fd >= 0 {
		return unix.Close(fd)
	}
	return nil
}

func (b *bell) EnableQueue(int, bool) error { return nil }

func (b *bell) StopQueue(int) (base uint32, err error) {
	b.kick.Close()
	<-b.ended // from here on nothing of the device touches the ring
	b.setCall(-1)
	return b.kicks, nil
}

// event is an eventfd that a Read waits for.
func event() *os.File {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	check(err)
	return os.NewFile(uintptr(fd), "eventfd")
}

// socketpair is the two ends of a connection. With QEMU the backend would listen on a Unix socket.
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

// A backend serves a device of our own, and a frontend uses it, in one process. To serve a QEMU, listen
// on a Unix socket and give Serve what connects; the machine's memory must be shared:
//
//	-chardev socket,id=bell,path=/run/bell.sock
//	-object memory-backend-memfd,id=ram,size=1G,share=on -machine q35,memory-backend=ram
func Example() {
	ours, theirs := socketpair()
	space := dma.NewSpace("bell", dma.NewFiles()) // the frontend's memory, while a connection lasts
	served := make(chan error)
	go func() { served <- vhostuser.NewBackend(&bell{}, space, nil).Serve(context.Background(), theirs) }()

	// The frontend has 64 KiB of memory at guest-physical address 1 MiB. It names rings by addresses
	// of its own, which are 0 to 64 KiB here.
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
	base, err := front.GetVringBase(0) // stops the queue
	check(err)
	fmt.Println("kicks:", base)
	front.Close()
	fmt.Println("served:", <-served)
	// Output:
	// both have: bit3|PROTOCOL_FEATURES|VERSION_1 and REPLY_ACK|CONFIG
	// configuration: "ding"
	// device: queue 0 has 256 descriptors at 0x100000
	// kicks: 3
	// served: <nil>
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
