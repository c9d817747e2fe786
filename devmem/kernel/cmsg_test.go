package kernel

import (
	"errors"
	"math"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
)

var someFrags = []devmem.Frag{
	{Kind: devmem.Dmabuf, Off: 1<<40 + 5, Size: 4091, Token: 7, Binding: 3},
	{Kind: devmem.Linear, Size: 9},
	{Kind: devmem.Dmabuf, Off: 0, Size: 1, Token: math.MaxUint32, Binding: math.MaxUint32},
	{Kind: devmem.Linear, Size: 100},
}

func putFrag(b []byte, f devmem.Frag) []byte {
	var c [fragSpace]byte
	kind := uint32(scmDevmemDmabuf)
	if f.Kind == devmem.Linear {
		kind = scmDevmemLinear
	}
	native.PutUint64(c[0:], fragSpace)
	native.PutUint32(c[8:], unix.SOL_SOCKET)
	native.PutUint32(c[12:], kind)
	native.PutUint64(c[16:], f.Off)
	native.PutUint32(c[24:], f.Size)
	native.PutUint32(c[28:], f.Token)
	native.PutUint32(c[32:], f.Binding)
	return append(b, c[:]...)
}

func controlOf(fs ...devmem.Frag) (b []byte) {
	for _, f := range fs {
		b = putFrag(b, f)
	}
	return b
}

func other(level, kind uint32, data ...byte) []byte {
	b := make([]byte, (cmsgHdrLen+len(data)+7)&^7)
	native.PutUint64(b, uint64(cmsgHdrLen+len(data)))
	native.PutUint32(b[8:], level)
	native.PutUint32(b[12:], kind)
	copy(b[cmsgHdrLen:], data)
	return b
}

func TestParseFrags(t *testing.T) {
	room := make([]devmem.Frag, 8)
	n, linear, err := parseFrags(controlOf(someFrags...), room)
	if d := cmp.Diff(someFrags, room[:n]); d != "" || linear != 109 || err != nil {
		t.Errorf("%d, %v: %s", linear, err, d)
	}
	if n, linear, err := parseFrags(nil, room); n+linear != 0 || err != nil {
		t.Errorf("nothing: %d, %d, %v", n, linear, err)
	}
	mixed := slices.Concat(other(unix.SOL_SOCKET, unix.SO_TIMESTAMP, make([]byte, 16)...), controlOf(someFrags[0]),
		other(unix.SOL_IP, scmDevmemDmabuf, 1), controlOf(someFrags[1]))
	if n, _, err := parseFrags(mixed, room); n != 2 || err != nil || room[1] != someFrags[1] {
		t.Errorf("among others: %d, %v", n, err)
	}
	// parseFrags accepts a last message without padding.
	if n, _, err := parseFrags(other(unix.SOL_IP, 1, 1)[:cmsgHdrLen+1], room); n != 0 || err != nil {
		t.Errorf("without padding: %d, %v", n, err)
	}
	whole := controlOf(someFrags[0])
	long := slices.Clone(whole)
	native.PutUint64(long, math.MaxUint64)
	short := slices.Clone(whole)
	native.PutUint64(short, cmsgHdrLen-1)
	cut := slices.Clone(whole)
	native.PutUint64(cut, fragSpace-1)
	for name, b := range map[string][]byte{
		"too long": long, "too short": short, "cut frag": cut, "half a header": whole[:8], "half a message": whole[:30],
		"more than there is room for": controlOf(slices.Repeat(someFrags, 3)...),
	} {
		if _, _, err := parseFrags(b, room); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func completion(level, kind uint32, errno uint32, origin byte, lo, hi uint32) []byte {
	data := make([]byte, extendedErr+16)
	native.PutUint32(data, errno)
	data[4] = origin
	native.PutUint32(data[8:], lo)
	native.PutUint32(data[12:], hi)
	return other(level, kind, data...)
}

func TestParseCompletion(t *testing.T) {
	const zc = unix.SO_EE_ORIGIN_ZEROCOPY
	for _, c := range []struct {
		name string
		b    []byte
		want seqRange
		ok   bool
		err  error
	}{
		{"ipv4", completion(unix.SOL_IP, unix.IP_RECVERR, 0, zc, 3, 9), seqRange{3, 9}, true, nil},
		{"ipv6", completion(unix.SOL_IPV6, unix.IPV6_RECVERR, 0, zc, math.MaxUint32, 0), seqRange{math.MaxUint32, 0}, true,
			nil},
		{"icmp", completion(unix.SOL_IP, unix.IP_RECVERR, 113, unix.SO_EE_ORIGIN_ICMP, 3, 9), seqRange{}, false, nil},
		{"an errno", completion(unix.SOL_IP, unix.IP_RECVERR, 1, zc, 3, 9), seqRange{}, false, nil},
		{"another message", other(unix.SOL_SOCKET, 1, 1, 2, 3), seqRange{}, false, nil},
		{"nothing", nil, seqRange{}, false, nil},
		{"cut", other(unix.SOL_IP, unix.IP_RECVERR, make([]byte, extendedErr-1)...), seqRange{}, false, syscall.EPROTO},
		{"half a header", make([]byte, 5), seqRange{}, false, syscall.EPROTO},
	} {
		r, ok, err := parseCompletion(c.b)
		if r != c.want || ok != c.ok || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v, %v", c.name, r, ok, err)
		}
	}
}

func TestTokensAndBindingAreEncodedAsTheKernelHasThem(t *testing.T) {
	var b [devmem.MaxTokenRanges * tokenLen]byte
	n := encodeTokens(&b, []devmem.TokenRange{{Start: 1, Count: 2}, {Start: 0xfffffffe, Count: 1024}})
	if n != 16 || native.Uint32(b[0:]) != 1 || native.Uint32(b[4:]) != 2 || native.Uint32(b[8:]) != 0xfffffffe ||
		native.Uint32(b[12:]) != 1024 {
		t.Errorf("%d: % x", n, b[:16])
	}
	var c [txSpace]byte
	level, kind, data, rest, err := nextCmsg(txCmsg(&c, 77))
	if level != unix.SOL_SOCKET || kind != scmDevmemDmabuf || len(data) != 4 || native.Uint32(data) != 77 ||
		len(rest) != 0 || err != nil {
		t.Errorf("%d, %d, % x, % x, %v", level, kind, data, rest, err)
	}
}

// If parseFrags accepts control messages, encoding its frags and parsing them again gives the same frags. No input
// makes parseFrags or parseCompletion panic.
func FuzzControlMessages(f *testing.F) {
	f.Add(controlOf(someFrags...))
	f.Add(completion(unix.SOL_IP, unix.IP_RECVERR, 0, unix.SO_EE_ORIGIN_ZEROCOPY, 1, 2))
	f.Add(slices.Concat(other(unix.SOL_IP, 1, 1, 2, 3), controlOf(someFrags[2])))
	f.Fuzz(func(t *testing.T, b []byte) {
		room := make([]devmem.Frag, 16)
		n, linear, err := parseFrags(b, room)
		if n > len(room) || n*fragSpace > len(b)+fragSpace || linear < 0 {
			t.Fatalf("%d frags, %d linear of %d bytes", n, linear, len(b))
		}
		if err == nil {
			again := make([]devmem.Frag, n)
			m, l, err := parseFrags(controlOf(room[:n]...), again)
			if m != n || l != linear || err != nil || !slices.Equal(again, room[:n]) {
				t.Fatalf("%+v, then %+v, %v", room[:n], again[:m], err)
			}
		}
		if _, ok, err := parseCompletion(b); ok && err != nil {
			t.Fatalf("both: %v", err)
		}
	})
}
