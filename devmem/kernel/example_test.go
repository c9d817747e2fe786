package kernel_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
)

// receive accepts one connection to addr, and returns the digest of the data that it receives in memory of GPU 0.
func receive(dev devmem.Device, mem []byte, addr netip.AddrPort) (sum []byte, err error) {
	buf, err := dev.Register(0, 0, uint64(len(mem)))
	if err != nil {
		return nil, err
	}
	if err := dev.SetRSS(1); err != nil { // packets that match no rule go to queue 0
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
			digest.Write(mem[f.Off : f.Off+uint64(f.Size)]) // a GPU would read it here
			if _, err := conn.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); err != nil {
				return nil, err
			}
		}
	}
}

// address returns the first IPv4 address of an interface.
func address(name string) (netip.Addr, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, err
	}
	addrs, err := iface.Addrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s has no IPv4 address", name)
}

// The example receives data in GPU memory and prints its digest. Run it as root on a machine whose NIC supports devmem
// TCP, with the interface's name as iface, or in a guest of `vnic boot --nic gve`. Send from another machine to the
// interface's address, here 192.0.2.1:
//
//	yes 'for GPU memory' | head -c 1500000 | nc -N 192.0.2.1 5202
func Example() {
	const iface = "eth0"
	gpu, err := kernel.NewUDMABuf(kernel.UDMABufOptions{Size: 32 << 20, Node: -1}) // or your GPU's Exporter
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close()
	dev, err := kernel.Open(kernel.Options{Interface: iface, Buffers: gpu})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close() // restores eth0's settings; log.Fatal skips it
	addr, err := address(iface)
	if err != nil {
		log.Fatal(err)
	}
	sum, err := receive(dev, gpu.Bytes(), netip.AddrPortFrom(addr, 5202))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("sha256 %x\n", sum)
	// Output: sha256 db5b63243ec3f38d77767b2652670255612a3913c31f8dcc66a2354bc6a45395
}
