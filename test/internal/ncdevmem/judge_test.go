package ncdevmem

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"testing"
)

func TestParseReception(t *testing.T) {
	const frag = "received frag_page=%d, in_page_offset=0, frag_offset=%d, frag_size=%d, token=%d, total_received=%d, " +
		"dmabuf_id=3\n"
	r := parseReception(`using ifindex=2
got dmabuf id=3
Got connection from ::ffff:10.0.0.2:40000
recvmsg ret=6000
` + fmt.Sprintf(frag, 15999, 65531904, 4096, 0, 4096) + fmt.Sprintf(frag, 15998, 65527808, 1904, 1, 6000) +
		`total_received=6000
SCM_DEVMEM_LINEAR. dmabuf_cmsg->frag_size=5
Failed validation: expected=1, actual=2, index=0
recvmsg ret=0
ncdevmem: client exited
`)
	want := reception{total: 6000, bytes: 6000, frags: 2, linear: 1, dmabufs: map[string]bool{"3": true}, bound: "3",
		ended: true,
		wrong: []string{"Failed validation: expected=1, actual=2, index=0"}}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("%+v\nwant %+v", r, want)
	}
}

func TestParseTransmission(t *testing.T) {
	x := parseTransmission("got tx dmabuf id=1\nsendmsg_ret=10\ntx complete [0,0]\nsendmsg_ret=20\ntx complete " +
		"[1,1]\nncdevmem: tx ok\n")
	if x.calls != 2 || x.bytes != 30 || x.completed != 2 || !x.ended || x.wrong != nil {
		t.Errorf("%+v", x)
	}
	x = parseTransmission("sendmsg_ret=10\n./ncdevmem: did not receive tx completion\n")
	if x.ended || len(x.wrong) != 1 {
		t.Errorf("%+v", x)
	}
}

func TestPatternPages(t *testing.T) {
	mem := make([]byte, 16*pageSize)
	copy(mem[2*pageSize:], pattern(3, pageSize))
	copy(mem[5*pageSize:], pattern(0, 2*pageSize))
	copy(mem[9*pageSize:], pattern(5, pageSize-1)) // a page with a last byte that is not the pattern's
	if n, err := patternPages(bytes.NewReader(mem), int64(len(mem))); n != 3 || err != nil {
		t.Errorf("%d pages, %v", n, err)
	}
}

func TestPatternIsWhatNcdevmemExpects(t *testing.T) {
	if got, want := string(pattern(5, 9)), "\x06\n\x01\x02\x03\x04\x05\x06\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLinesEndWhereTheySay(t *testing.T) {
	b := makeLines(1, 1<<20)
	if len(b) != 1<<20 || b[len(b)-1] != '\n' {
		t.Fatalf("%d bytes, last %q", len(b), b[len(b)-1])
	}
	if n := bytes.Count(b, []byte{'\n'}); n != countLines(1<<20) {
		t.Errorf("%d lines, want %d", n, countLines(1<<20))
	}
}

func TestKernelLogTrouble(t *testing.T) {
	if got := logTrouble("[1.0] gve eth0: up\n[2.0] WARNING: CPU: 0 at net/core\n[3.0] fine"); len(got) != 1 {
		t.Error(got)
	}
}

func TestJudgeCounts(t *testing.T) {
	j := judge{out: io.Discard}
	j.check(true, "a")
	j.check(false, "b")
	if j.failed != 1 {
		t.Error(j.failed)
	}
}
