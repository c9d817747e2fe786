// Stock binds a lab file's NICs to the kernel's virtio_net, and sends a stream over each from guest 1 to
// guest 0, which checks the data.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"vnic.dev/vnic/guest"
)

const (
	piece  = 64 << 10
	pieces = 300
	pause  = 50 * time.Millisecond
	silent = 8 * time.Second
)

func main() {
	names, err := guest.Devices()
	check(err)
	// An interface answers ARP only for its own addresses, and its own requests prefer these as their source.
	for _, key := range []string{"arp_ignore=1", "arp_announce=2"} {
		key, value, _ := strings.Cut(key, "=")
		check(os.WriteFile("/proc/sys/net/ipv4/conf/all/"+key, []byte(value), 0))
	}
	var all sync.WaitGroup
	for i, entry := range strings.Fields(os.Getenv("VNIC_DEVICES")) {
		_, rest, _ := strings.Cut(entry, "=")
		parts := strings.Split(rest, ",")
		all.Go(func() {
			name := names[i]
			// The first NIC's address in $VNIC_DEVICES is on eth0's subnet, so each NIC gets another.
			addr := netip.MustParseAddr(fmt.Sprintf("10.99.%d.1%s", i, os.Getenv("VNIC_INDEX")))
			ifname, err := up(parts[0], netip.PrefixFrom(addr, 24).String())
			if err == nil && os.Getenv("VNIC_INDEX") == "0" {
				err = receive(addr)
			} else if err == nil {
				err = send(addr, ifname)
			}
			if err != nil {
				fmt.Printf("%s: %v\n", name, err)
				return
			}
			fmt.Printf("%s: whole\n", name)
		})
	}
	all.Wait()
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// up binds a PCI device to the kernel's driver, brings its interface up with an address, and returns the interface's
// name.
func up(pci, addr string) (string, error) {
	if err := os.WriteFile("/sys/bus/pci/drivers/virtio-pci/bind", []byte(pci), 0); err != nil {
		return "", err
	}
	var found []string
	for range 100 {
		var err error
		if found, err = filepath.Glob("/sys/bus/pci/devices/" + pci + "/virtio*/net/*"); err != nil || len(found) == 1 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("interfaces of %s: %v", pci, found)
	}
	name := filepath.Base(found[0])
	link, err := netlink.LinkByName(name)
	if err != nil {
		return "", err
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return "", err
	}
	return name, errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
}

func pattern(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 'x', 'y'}, piece/4) }

func receive(at netip.Addr) error {
	l, err := net.Listen("tcp", netip.AddrPortFrom(at, 5000).String())
	if err != nil {
		return err
	}
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(silent)); err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	b := make([]byte, piece)
	for i := range pieces {
		if err := c.SetReadDeadline(time.Now().Add(silent)); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return fmt.Errorf("nothing came any more: %w", err)
		}
		if !bytes.Equal(b, pattern(i)) {
			return fmt.Errorf("piece %d is not what was sent", i)
		}
	}
	return nil
}

func send(from netip.Addr, ifname string) error {
	to := netip.AddrPortFrom(from.Prev(), 5000).String()
	var c net.Conn
	err := errors.New("not tried")
	for end := time.Now().Add(silent); err != nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		c, err = net.DialTimeout("tcp", to, time.Second)
	}
	if err != nil {
		return err
	}
	for i := range pieces {
		time.Sleep(pause)
		if _, err := os.Stat("/sys/class/net/" + ifname); err != nil {
			return errors.New("its interface is gone")
		}
		if err := c.SetWriteDeadline(time.Now().Add(silent)); err != nil {
			return err
		}
		if _, err := c.Write(pattern(i)); err != nil {
			return err
		}
	}
	return nil
}
