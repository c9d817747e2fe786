package kernel_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
)

// receive takes one connection to addr into memory of GPU 0 and gives the digest of what came.
func receive(dev devmem.Device, mem []byte, addr netip.AddrPort) (sum []byte, err error) {
	buf, err := dev.Register(0, 0, uint64(len(mem)))
	if err != nil {
		return nil, err
	}
	if err := dev.SetRSS(1); err != nil { // what is not ours stays on queue 0
		return nil, err
	}
	if _, err := dev.BindRX(buf, 1); err != nil {
		return nil, err
	}
	if _, err := dev.AddFlow(devmem.Flow{Dst: addr, Queue: 1}); err != nil {
		return nil, err
	}
	l, err := dev.Listen(addr)
	if err != nil {
		return nil, err
	}
	conn, err := l.AcceptConn()
	if err != nil {
		return nil, err
	}
	digest := sha256.New()
	frags, linear := make([]devmem.Frag, 128), make([]byte, 1<<20)
	for {
		_, n, _, err := conn.RecvDevmem(frags, linear, 0)
		if err == io.EOF {
			return digest.Sum(nil), nil
		}
		if err != nil {
			return nil, err
		}
		for _, f := range frags[:n] {
			if f.Kind == devmem.Linear {
				return nil, errors.New("payload came in host memory")
			}
			digest.Write(mem[f.Off : f.Off+uint64(f.Size)]) // a GPU would look at it here
			if _, err := conn.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); err != nil {
				return nil, err
			}
		}
	}
}

// Run it as root on a machine whose NIC has devmem TCP (make the example's body a main, with the interface's name and
// address), and send from another:
//
//	go run . &
//	head -c 1G /dev/urandom | tee >(sha256sum >&2) | nc -N 192.0.2.1 5201
func Example() {
	gpu, err := kernel.NewUDMABuf(kernel.UDMABufOptions{Size: 32 << 20, Node: -1}) // or your GPU's Exporter
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close()
	dev, err := kernel.Open(kernel.Options{Interface: "eth0", Buffers: gpu})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close() // sets eth0 back as it was
	sum, err := receive(dev, gpu.Bytes(), netip.MustParseAddrPort("192.0.2.1:5201"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%x\n", sum)
}
