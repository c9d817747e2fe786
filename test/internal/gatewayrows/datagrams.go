package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

func (p *prober) tftp() (string, string, error) {
	network := "udp4"
	if p.six() {
		network = "udp6"
	}
	c, err := net.ListenUDP(network, nil)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	server := &net.UDPAddr{IP: net.ParseIP(p.world), Port: tftpPort}
	if _, err := c.WriteTo([]byte("\x00\x01file\x00octet\x00"), server); err != nil {
		return "", "", err
	}
	b := make([]byte, 512)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	for block := byte(0); block < 2; {
		n, from, err := c.ReadFromUDP(b)
		switch {
		case err != nil && block == 0:
			return "", "", errors.New("the answer does not come")
		case err != nil:
			return "", "", errors.New("the acknowledgement does not arrive")
		case n != 5 || !from.IP.Equal(server.IP) || from.Port == tftpPort:
			return "", "", fmt.Errorf("%d bytes from %v", n, from)
		}
		block = b[3]
		if _, err := c.WriteTo([]byte{0, 4, 0, block}, from); err != nil {
			return "", "", err
		}
	}
	return "yes", "answers, and what is sent to their port", nil
}

func (p *prober) unreachable() (string, string, error) {
	c, err := p.dialUDP(closedPort)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	_, err = exchange(c, []byte("x"), make([]byte, 1))
	if errors.Is(err, unix.ECONNREFUSED) {
		return "yes", "the guest's socket says that the port is closed", nil
	}
	return "no", "silence", nil
}

func (p *prober) df() (string, string, error) {
	c, err := p.dialUDP(echoPort)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	level, discover, path, overhead := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU, 28
	if p.six() {
		level, discover, path, overhead = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU, 48
	}
	mtu := 0
	if err := control(c, func(fd int) error {
		return unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO)
	}); err != nil {
		return "", "", err
	}
	_, failed := exchange(c, make([]byte, 1400-overhead), make([]byte, 1500))
	if err := control(c, func(fd int) (err error) {
		mtu, err = unix.GetsockoptInt(fd, level, path)
		return err
	}); err != nil {
		return "", "", err
	}
	switch {
	case mtu == pathMTU:
	case mtu < pathMTU:
		return "some", fmt.Sprintf("the guest hears of it without the MTU, and takes %d", mtu), nil
	case failed != nil:
		return "no", "what is longer is lost", nil
	default:
		return "no", "what is longer is fragmented behind the gateway", nil
	}
	if _, err := exchange(c, make([]byte, pathMTU-overhead), make([]byte, 1500)); err != nil {
		return "", "", fmt.Errorf("%d is found, but does not pass: %w", pathMTU, err)
	}
	return "yes", fmt.Sprintf("the guest's path has %d", mtu), nil
}

// same6 runs tftp, unreachable, df and cut over IPv6.
func (p *prober) same6() (string, string, error) {
	if err := p.await6(); err != nil {
		return "", "", err
	}
	six := &prober{gateway: p.gateway}
	six.world = p.world6
	var text []string
	for _, r := range []probe{{"TFTP", six.tftp}, {"unreachable", six.unreachable}, {"DF", six.df}, {"cut", six.cut}} {
		switch verdict, t, err := r.f(); {
		case err != nil:
			text = append(text, r.name+": "+err.Error())
		case verdict != "yes":
			text = append(text, r.name+": "+t)
		}
	}
	if len(text) > 0 {
		return "no", strings.Join(text, ", "), nil
	}
	return "yes", "TFTP, unreachable and DF as by IPv4; what the guest cuts for the path arrives", nil
}

// cut sends a datagram that is longer than the path MTU, so that the guest's kernel has to fragment it.
func (p *prober) cut() (string, string, error) {
	c, err := p.dialUDP(echoPort)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	if _, err := exchange(c, make([]byte, 1350), make([]byte, 1500)); err != nil {
		return "", "", err
	}
	return "yes", "", nil
}

func (p *prober) silence() (string, string, error) {
	c, err := p.dialUDP(talkPort)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	b := make([]byte, 16)
	if n, err := exchange(c, []byte("w"), b); err != nil || n != 3 || b[2] != 'a' {
		return "", "", errors.New("no answer")
	}
	port := binary.BigEndian.Uint16(b)
	_ = c.SetReadDeadline(time.Now().Add(silence*time.Second + patience))
	if n, err := c.Read(b); err != nil || n != 3 || b[2] != 'b' {
		return "no", fmt.Sprintf("after %d s an answer does not come", silence), nil
	}
	if n, err := exchange(c, []byte("w"), b); err != nil || n != 3 || binary.BigEndian.Uint16(b) != port {
		return "some", fmt.Sprintf("after %d s an answer comes, but the port is another one", silence), nil
	}
	return "yes", fmt.Sprintf("after %d s an answer comes, and the port is as before", silence), nil
}

func (p *prober) bursts() (string, string, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: burstPort})
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	if err := control(c, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	}); err != nil {
		return "", "", err
	}
	var back int
	failed := make(chan error, 1)
	go func() { failed <- p.ask(fmt.Sprint("/burst/", p.forward), nil, &back) }()
	in, from := receiveBurst(c)
	if in > 0 {
		if err := sendBurst(func(b []byte) (int, error) { return c.WriteToUDPAddrPort(b, from) }); err != nil {
			return "", "", err
		}
	}
	if err := <-failed; err != nil {
		return "", "", err
	}
	return p.share(in+back, 2*bursts), fmt.Sprintf("%d of %d to the guest, %d from it", in, bursts, back), nil
}

// dfAgain sends a datagram with DF that is longer than the path MTU, which the kernel of the gateway's machine has
// known since df.
func (p *prober) dfAgain() (string, string, error) {
	errs, err := icmp.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return "", "", err
	}
	defer errs.Close()
	c, err := p.dialUDP(echoPort)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	if err := control(c, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}); err != nil {
		return "", "", err
	}
	if _, err := c.Write(make([]byte, 1400-28)); err != nil {
		return "", "", err
	}
	n := 0
	_ = errs.SetReadDeadline(time.Now().Add(patience))
	for b := make([]byte, 1500); ; n++ {
		k, _, err := errs.ReadFrom(b)
		if err != nil {
			break
		}
		if m, err := icmp.ParseMessage(1, b[:k]); err != nil || m.Type != ipv4.ICMPTypeDestinationUnreachable || m.Code != 4 {
			return "", "", fmt.Errorf("%+v", m)
		}
		_ = errs.SetReadDeadline(time.Now().Add(patience / 5))
	}
	if n != 1 {
		return "no", fmt.Sprintf("the guest is told %d times", n), nil
	}
	return "yes", "the guest gets the error once", nil
}
