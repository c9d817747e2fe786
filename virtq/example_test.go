package virtq_test

import (
	"fmt"
	"log"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/virtq"
)

// Both ends of a ring, joined by a memfd: the device copies the chain's first buffer to its second.
func Example() {
	const size, memLen, outAt, inAt = 256, 1 << 20, 0x80000, 0x90000
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	must(err)
	defer unix.Close(fd)
	must(unix.Ftruncate(fd, memLen))
	mem, err := unix.Mmap(fd, 0, memLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	defer unix.Munmap(mem)

	// The driver's chain has a buffer for the device to read and one for it to write.
	driver, err := virtq.NewDriver(virtq.DriverConfig{Size: size, Mem: mem, EventIdx: true})
	must(err)
	n := copy(mem[outAt:], "ping")
	err = driver.Add([]virtq.Buf{{Addr: outAt, Len: uint32(n)}}, []virtq.Buf{{Addr: inAt, Len: 100}}, 42)
	must(err)
	fmt.Println("kick:", driver.Publish())

	// The device maps the memory by its file descriptor.
	space := dma.NewSpace("example", dma.NewFiles())
	defer space.Close()
	must(space.Add(dma.Map{Size: memLen, FD: fd}))
	desc, avail, used := driver.Addrs()
	done := make(chan struct{})
	dma.Go(func() {
		defer close(done)
		device, err := virtq.NewDevice(space, virtq.Config{Size: size, Desc: desc, Avail: avail, Used: used, EventIdx: true})
		must(err)
		defer device.Close()
		defer space.Leave(space.Enter())
		var chain virtq.Chain
		for {
			ok, err := device.Peek(&chain)
			must(err)
			if !ok {
				break
			}
			n, err := dma.NewCopier().Copy(chain.In, chain.Out)
			must(err)
			device.Commit(chain.Head, uint32(n))
		}
		fmt.Println("call:", device.Publish())
	})
	<-done

	var back [8]virtq.Used
	k, err := driver.Poll(back[:])
	must(err)
	for _, u := range back[:k] {
		fmt.Printf("chain %d: %s\n", u.Cookie, mem[inAt:][:u.Len])
	}
	// Output:
	// kick: true
	// call: true
	// chain 42: ping
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
