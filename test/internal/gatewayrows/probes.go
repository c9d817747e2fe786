package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const patience = 15 * time.Second

type probe struct {
	name string
	f    func() (verdict, text string, err error)
}

// rows measures and reports the rows but silence and reset.
func (p *prober) rows() error {
	list := []probe{
		{"ping", p.ping}, {"TFTP", p.tftp}, {"unreachable", p.unreachable}, {"DF", p.df}, {"bursts", p.bursts},
		{"search list", p.searchList}, {"TCP rate", p.tcpRate}, {"UDP rate", p.udpRate}, {"IPv6", p.ipv6},
		{"1,000 flows", p.thousand}, // last, as its connections stay open
	}
	if p.name == gateways[0].name {
		list = append([]probe{{"ping refused", p.pingRefused}, {"traceroute", p.traceroute}}, list...)
		list = slices.Insert(list, len(list)-1, probe{"UDP by IPv6", p.same6}, probe{"DF again", p.dfAgain})
	}
	for _, r := range list {
		if err := p.report(r.name, r.f); err != nil {
			return err
		}
	}
	return nil
}

// report measures a row, and sends the result, or the error as a result, to the world's HTTP server.
func (p *prober) report(name string, f func() (verdict, text string, err error)) error {
	r := row{Gateway: p.name, Name: name}
	var err error
	if r.Verdict, r.Text, err = f(); err != nil {
		r.Verdict, r.Text = "no", err.Error()
		if strings.HasSuffix(name, "rate") {
			r.Verdict, r.Text = "", "not measured: "+r.Text
		}
	}
	fmt.Fprintf(os.Stderr, "gatewayrows: %+v\n", r)
	return p.ask("/row", r, nil)
}

// share returns the verdict for n of sent. vnic must lose none. For the other gateways a twentieth makes no
// difference: their verdict must be the same each time.
func (p *prober) share(n, sent int) string {
	slack := 0
	if p.name != gateways[0].name {
		slack = sent / 20
	}
	switch {
	case n >= sent-slack:
		return "yes"
	case n <= slack:
		return "no"
	}
	return "some"
}

// ask posts body as JSON to the world's HTTP server, and decodes the response into answer, unless answer is nil.
func (p *prober) ask(path string, body, answer any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	c := http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Post(p.url(path), "application/json", bytes.NewReader(b))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if b, err = io.ReadAll(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, b)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(b, answer)
}

func (p *prober) url(path string) string {
	return "http://" + address(p.world, controlPort) + path
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

func control(c *net.UDPConn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	return errors.Join(raw.Control(func(fd uintptr) { failed = f(int(fd)) }), failed)
}

func (p *prober) six() bool { return strings.Contains(p.world, ":") }

func (p *prober) dialUDP(port int) (*net.UDPConn, error) {
	c, err := net.Dial("udp", address(p.world, port))
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// exchange sends question until an answer comes, three times at most.
func exchange(c net.Conn, question, answer []byte) (n int, err error) {
	for range 3 {
		if _, err = c.Write(question); err != nil {
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(patience / 3))
		if n, err = c.Read(answer); err == nil {
			return n, nil
		}
	}
	return 0, err
}

func (p *prober) searchList() (string, string, error) {
	list := p.lease.DomainSearch()
	switch {
	case list == nil || len(list.Labels) == 0:
		return "no", "no option 119", nil
	case !strings.Contains(strings.Join(list.Labels, " "), strings.Join(search, " ")):
		return "some", strings.Join(list.Labels, ", "), nil
	}
	return "yes", strings.Join(list.Labels, ", "), nil
}

func (p *prober) tcpRate() (string, string, error) {
	rate := func(f func() (*http.Response, error)) (float64, error) {
		start := time.Now()
		resp, err := f()
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return rateBytes / time.Since(start).Seconds() / 1e6, err
	}
	out, err := rate(func() (*http.Response, error) {
		return http.Post(p.url("/bytes"), "application/octet-stream", io.LimitReader(zeros{}, rateBytes))
	})
	if err != nil {
		return "", "", err
	}
	in, err := rate(func() (*http.Response, error) { return http.Get(p.url("/bytes")) })
	return "", fmt.Sprintf("%.0f MB/s out, %.0f in", out, in), err
}

func (p *prober) udpRate() (string, string, error) {
	c, err := p.dialUDP(talkPort)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	b := make([]byte, frameBytes)
	b[0] = 'c'
	for range rateFrames {
		if _, err := c.Write(b); err != nil {
			return "", "", err
		}
	}
	if n, err := exchange(c, []byte("q"), b); err != nil || n != 16 {
		return "", "", errors.New("no count")
	}
	rate := func(n int, d time.Duration) string {
		if n == 0 {
			return "nothing"
		}
		return fmt.Sprintf("%.0f MB/s (%.0f %% arrive)", float64(n*frameBytes)/d.Seconds()/1e6, 100*float64(n)/rateFrames)
	}
	out := rate(int(binary.BigEndian.Uint64(b)), time.Duration(binary.BigEndian.Uint64(b[8:])))
	if _, err := c.Write([]byte("s")); err != nil {
		return "", "", err
	}
	n, start, last := 0, time.Time{}, time.Time{}
	for {
		_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
		if _, err := c.Read(b); err != nil {
			break
		}
		if last = time.Now(); n == 0 {
			start = last
		}
		n++
	}
	return "", out + " out, " + rate(n, last.Sub(start)) + " in", nil
}

func (p *prober) ipv6() (string, string, error) {
	if err := p.await6(); err != nil {
		return "", "", err
	}
	var text []string
	c, err := net.DialTimeout("tcp", address(p.world6, echoPort), patience)
	if err == nil {
		_, err = exchange(c, []byte("x"), make([]byte, 1))
		_ = c.Close()
	}
	if err == nil {
		text = append(text, "TCP")
	}
	if p.pinged(p.world6, true) == nil {
		text = append(text, "ping")
	}
	if len(text) == 0 {
		return "no", "neither TCP nor ping", nil
	}
	return p.share(len(text), 2), strings.Join(text, " and "), nil
}

// await6 waits, for 2*patience at most, until the NIC has a usable IPv6 address beside its link-local one.
func (p *prober) await6() error {
	link, err := netlink.LinkByName(p.link)
	if err != nil {
		return err
	}
	changes, done := make(chan netlink.AddrUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.AddrSubscribe(changes, done); err != nil {
		return err
	}
	for timeout := time.After(2 * patience); ; {
		addrs, err := netlink.AddrList(link, unix.AF_INET6)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if a.Scope != unix.RT_SCOPE_LINK && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
				return nil
			}
		}
		select {
		case <-changes:
		case <-timeout:
			return errors.New("no address")
		}
	}
}
