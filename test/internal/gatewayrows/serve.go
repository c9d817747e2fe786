package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// serve runs the servers until one of them fails.
func serve(netns string) error {
	failed := make(chan error)
	go func() { // The thread in the world's namespace ends with this goroutine.
		runtime.LockOSThread()
		failed <- world(netns, failed)
	}()
	return <-failed
}

func world(netns string, failed chan<- error) error {
	f, err := os.Open(netns)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("setns %s: %w", netns, err)
	}
	l, err := net.Listen("tcp", fmt.Sprint(":", echoPort))
	if err != nil {
		return err
	}
	control, err := net.Listen("tcp", fmt.Sprint(":", controlPort))
	if err != nil {
		return err
	}
	run := func(f func() error) { go func() { failed <- f() }() }
	run(func() error { return echoTCP(l) })
	var addresses []net.IP // one socket for each: an answer comes from the address that was asked
	for _, g := range gateways {
		addresses = append(addresses, net.ParseIP(g.world), net.ParseIP(g.world6))
	}
	for _, ip := range addresses {
		answer, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip})
		if err != nil {
			return err
		}
		for port, f := range map[int]func(*net.UDPConn) error{tftpPort: tftp(answer), echoPort: echoUDP, talkPort: talk} {
			c, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip, Port: port})
			if err != nil {
				return err
			}
			if err := c.SetReadBuffer(4 << 20); err != nil {
				return err
			}
			run(func() error { return f(c) })
		}
	}
	run(func() error { return http.Serve(control, controls()) })
	select {}
}

func echoTCP(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

func echoUDP(c *net.UDPConn) error {
	b := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		_, _ = c.WriteToUDPAddrPort(b[:n], from)
	}
}

// tftp returns a server that answers each request with two blocks, from answer's port (RFC 1350, 4).
func tftp(answer *net.UDPConn) func(*net.UDPConn) error {
	return func(c *net.UDPConn) error {
		b := make([]byte, 512)
		for {
			_, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return err
			}
			for block, tries := byte(1), 0; block <= 2 && tries < 5; tries++ {
				_, _ = answer.WriteToUDPAddrPort([]byte{0, 3, 0, block, 'x'}, from)
				_ = answer.SetReadDeadline(time.Now().Add(time.Second))
				if n, _, err := answer.ReadFromUDPAddrPort(b); err == nil && n == 4 && b[1] == 4 && b[3] == block {
					block++
				}
			}
		}
	}
}

// talk does what a datagram's first byte says:
//
//	w  sends the datagram's source port and 'a' to its source at once, and the port and 'b' after silence seconds
//	c  counts the datagram
//	q  returns the count and the nanoseconds from the first to the last counted datagram, and restarts the count
//	s  sends rateFrames datagrams
func talk(c *net.UDPConn) error {
	b := make([]byte, 64<<10)
	var count uint64
	var first, last time.Time
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		switch {
		case n == 0:
		case b[0] == 'w':
			port := binary.BigEndian.AppendUint16(nil, from.Port())
			_, _ = c.WriteToUDPAddrPort(append(port, 'a'), from)
			time.AfterFunc(silence*time.Second, func() { _, _ = c.WriteToUDPAddrPort(append(port, 'b'), from) })
		case b[0] == 'c':
			if last = time.Now(); count == 0 {
				first = last
			}
			count++
		case b[0] == 'q':
			answer := binary.BigEndian.AppendUint64(nil, count)
			_, _ = c.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(answer, uint64(last.Sub(first))), from)
			count = 0
		case b[0] == 's':
			go func() {
				b := make([]byte, frameBytes)
				for range rateFrames {
					_, _ = c.WriteToUDPAddrPort(b, from)
				}
			}()
		}
	}
}

func controls() http.Handler {
	var mu sync.Mutex
	boots, out := map[string]int{}, json.NewEncoder(os.Stdout)
	mux := http.NewServeMux()
	handle := func(name string, f func(r *http.Request) (any, error)) {
		mux.HandleFunc(name, func(w http.ResponseWriter, r *http.Request) {
			v, err := f(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	handle("POST /boot/{name}", func(r *http.Request) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		boots[r.PathValue("name")]++
		return boots[r.PathValue("name")], nil
	})
	handle("POST /row", func(r *http.Request) (any, error) {
		var v row
		if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		return nil, out.Encode(v)
	})
	// Allows sockets for pings to group 0, the only group in this user namespace.
	handle("POST /ping", func(*http.Request) (any, error) {
		return nil, os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0)
	})
	handle("POST /burst/{port}", func(r *http.Request) (any, error) {
		port, err := strconv.Atoi(r.PathValue("port"))
		if err != nil {
			return nil, err
		}
		return burst(port)
	})
	mux.HandleFunc("GET /bytes", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.CopyN(w, zeros{}, rateBytes) })
	mux.HandleFunc("POST /bytes", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	return mux
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func burst(port int) (int, error) {
	c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetReadBuffer(4 << 20); err != nil {
		return 0, err
	}
	if err := sendBurst(c.Write); err != nil {
		return 0, err
	}
	n, _ := receiveBurst(c)
	return n, nil
}

func sendBurst(write func([]byte) (int, error)) error {
	b := make([]byte, burstBytes)
	for i := range bursts {
		b[0] = byte(i)
		if _, err := write(b); err != nil {
			return err
		}
	}
	return nil
}

// receiveBurst counts a burst's different datagrams, and returns their source. It waits 20 s for the first one, as
// the guest sends after it has received, and 3 s for each further one.
func receiveBurst(c *net.UDPConn) (count int, from netip.AddrPort) {
	b, seen := make([]byte, 64<<10), map[byte]bool{}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	for len(seen) < bursts {
		n, a, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			break
		}
		if n == burstBytes {
			seen[b[0]], from = true, a
			_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
		}
	}
	return len(seen), from
}
