package main

import (
	"fmt"
	"net"
	"sync"
)

// thousand tries to open 1,000 TCP connections, which it leaves open, and then 1,000 UDP flows.
func (p *prober) thousand() (string, string, error) {
	tcp, conns := p.open("tcp")
	p.kept = conns
	udp, conns := p.open("udp")
	for _, c := range conns {
		_ = c.Close()
	}
	return p.share(tcp+udp, 2*flows), fmt.Sprintf("%d of TCP and %d of UDP", tcp, udp), nil
}

// afterReset opens TCP connections from the ports that thousand used before the guest's restart.
func (p *prober) afterReset() (string, string, error) {
	n, conns := p.open("tcp")
	p.kept = conns
	return p.share(n, flows), fmt.Sprintf("%d of %d new connections from the same ports", n, flows), nil
}

// open tries to open the flows, then sends a request on each that is open, and counts the answers. The guest's ports
// are outside of the kernel's usual range of ephemeral ports.
func (p *prober) open(network string) (answers int, conns []net.Conn) {
	var mu sync.Mutex
	each := func(n int, f func(i int)) {
		var wg sync.WaitGroup
		turns := make(chan struct{}, 200)
		for i := range n {
			turns <- struct{}{}
			wg.Go(func() { f(i); <-turns })
		}
		wg.Wait()
	}
	each(flows, func(i int) {
		d := net.Dialer{Timeout: patience * 2 / 3, LocalAddr: &net.TCPAddr{Port: flowsPort + i}}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{Port: flowsPort + i}
		}
		c, err := d.Dial(network, address(p.world, echoPort))
		if err != nil {
			return
		}
		if _, err := exchange(c, []byte("a"), make([]byte, 1)); err != nil {
			_ = c.Close()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	})
	each(len(conns), func(i int) {
		b := make([]byte, 1)
		if n, err := exchange(conns[i], []byte("b"), b); err == nil && n == 1 {
			mu.Lock()
			defer mu.Unlock()
			answers++
		}
	})
	return answers, conns
}
