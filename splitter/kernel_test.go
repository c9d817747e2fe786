//go:build golden

package splitter

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

var update = flag.Bool("update", false, "write testdata/gso/*.pcap from what this kernel does")

// TestKernelSegments compares the golden captures of segment_test.go with what this kernel does, or with -update
// writes them: the kernel segments each super-packet from one tap of a bridge for the other tap. It needs root,
// /dev/net/tun and ip(8): go test -tags golden -run TestKernelSegments ./splitter [-update]
func TestKernelSegments(t *testing.T) {
	runtime.LockOSThread() // never unlocked, so that the thread, which is in another namespace, ends with this goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("no network namespace: ", err)
	}
	in, out := tap(t, "in"), tap(t, "out")
	for _, args := range [][]string{
		{"link", "add", "bridge0", "type", "bridge", "mcast_snooping", "0"},
		{"link", "set", "bridge0", "mtu", "9000"}, {"link", "set", "in", "mtu", "9000"},
		{"link", "set", "out", "mtu", "9000"},
		{"link", "set", "in", "master", "bridge0", "addrgenmode", "none"}, {"link", "set", "out", "master", "bridge0",
			"addrgenmode", "none"},
		{"link", "set", "bridge0", "addrgenmode", "none"},
		{"link", "set", "in", "up"}, {"link", "set", "out", "up"}, {"link", "set", "bridge0", "up"},
	} {
		if o, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, o)
		}
	}
	for name, g := range goldenSuperPackets() {
		super, m := g.super()
		var vnet [10]byte
		vnet[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
		vnet[1] = map[GSOType]byte{GSOTCPv4: 1, GSOTCPv6: 4, GSOUDPL4: 5}[g.gso]
		if m.ECN {
			vnet[1] |= 0x80
		}
		binary.LittleEndian.PutUint16(vnet[2:], m.Headers.HdrLen)
		binary.LittleEndian.PutUint16(vnet[4:], g.mss)
		binary.LittleEndian.PutUint16(vnet[6:], m.CsumStart)
		binary.LittleEndian.PutUint16(vnet[8:], m.CsumOffset)
		if _, err := unix.Write(in, append(vnet[:], super...)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		frames := [][]byte{super}
		for range (len(super) - int(m.Headers.HdrLen) + int(g.mss) - 1) / int(g.mss) {
			buf := make([]byte, 10+65536)
			fds := []unix.PollFd{{Fd: int32(out), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds, 5000); n != 1 {
				t.Fatalf("%s: segment %d: %d, %v", name, len(frames), n, err)
			}
			n, err := unix.Read(out, buf)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !bytes.Equal(buf[:10], make([]byte, 10)) {
				t.Fatalf("%s: segment %d came with offloads: %x", name, len(frames), buf[:10])
			}
			frames = append(frames, buf[10:n])
		}
		path := filepath.Join("testdata", "gso", name+".pcap")
		if *update {
			testkit.OK(t, os.WriteFile(path, pcap(frames), 0o644))
			continue
		}
		if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, pcap(frames)) {
			t.Errorf("%s: this kernel does it in another way, %v", name, err)
		}
	}
}

// tap opens a tap with virtio_net_hdr and no offloads.
func tap(t *testing.T, name string) int {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no tap: ", err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	ifr, err := unix.NewIfreq(name)
	testkit.OK(t, err)
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Skip("no tap: ", err)
	}
	return fd
}

func pcap(frames [][]byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint16(le.AppendUint16(b, 2), 4)
	b = le.AppendUint32(le.AppendUint32(le.AppendUint32(le.AppendUint32(b, 0), 0), 262144), 1)
	for _, f := range frames {
		b = le.AppendUint64(b, 0)
		b = append(le.AppendUint32(le.AppendUint32(b, uint32(len(f))), uint32(len(f))), f...)
	}
	return b
}
