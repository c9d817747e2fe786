package gpumem

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
	"vnic.dev/vnic/internal/testkit"
)

var auditStreams = []Stream{{Seed: 0x1234, Bytes: 1 << 20}, {Seed: 0xfeedfacecafe, Bytes: 1<<40 + 3}}

// plant writes n bytes of stream i, from byte so on, to ram[pos:]. It makes the byte before and the byte after them
// differ from the stream, where ram has such a byte and, for the byte before, so is not 0.
func plant(ram []byte, pos, n, i int, so uint64) {
	seed := auditStreams[i].Seed
	FillAt(ram[pos:pos+n], seed, so)
	if pos > 0 && so > 0 {
		ram[pos-1] = ^pattern(1, seed, so-1)[0]
	}
	if pos+n < len(ram) {
		ram[pos+n] = ^pattern(1, seed, so+uint64(n))[0]
	}
}

// Pieces of 63, 64 and 73 bytes of a stream are planted within 72 bytes of the memory's ends, and of ends of blocks and
// a chunk; the ones of 63 bytes are no hits.
//
// Invariant: gpumem: The audit misses no window of the payload, and reports no false one.
func TestAuditFindsEachWindow(t *testing.T) {
	const size = auditChunk + 3*auditBlock
	noise := make([]byte, size)
	random(rand.New(rand.NewPCG(1, 2)), noise)
	for _, back := range []struct {
		name string
		ram  []byte
	}{{"zeros", make([]byte, size)}, {"noise", noise}} {
		t.Run(back.name, func(t *testing.T) {
			ram := slices.Clone(back.ram)
			for _, edge := range []int{0, auditBlock, auditChunk, auditChunk + auditBlock, size} {
				for d := -72; d <= 72; d++ {
					pos := edge + d
					for _, n := range []int{AuditWindow - 1, AuditWindow, AuditWindow + 9} {
						if pos < 0 || pos+n > size {
							continue
						}
						so := uint64(1000 + 13*d%64)
						plant(ram, pos, n, 0, so)
						lo, hi := max(pos-auditBlock-1, 0), min(pos+n+auditBlock+1, size)
						s := newScanner(auditStreams)
						if d%24 == 0 { // for some places, audit all of ram
							s.hits = Audit(ram, auditStreams)
						} else {
							s.scan(ram[lo:hi], uint64(lo))
						}
						want := []Hit{{Off: uint64(pos), Len: uint64(n), StreamOff: so}}
						if n < AuditWindow {
							want = nil
						}
						if got := join(s.hits); !slices.Equal(got, want) {
							t.Fatalf("%d bytes of stream at %d planted at %d: %+v", n, so, pos, got)
						}
						copy(ram[max(pos-1, 0):], back.ram[max(pos-1, 0):min(pos+n+1, size)])
					}
				}
			}
		})
	}
}

// Memory ends or begins with a window.
func TestAuditAtTheEnds(t *testing.T) {
	for size := AuditWindow; size < 5*AuditWindow; size++ {
		for so := range uint64(8) {
			ram := make([]byte, size)
			for _, pos := range []int{size - AuditWindow, 0} {
				random(rand.New(rand.NewPCG(3, 4)), ram)
				plant(ram, pos, AuditWindow, 0, 80+so)
				want := []Hit{{Off: uint64(pos), Len: AuditWindow, StreamOff: 80 + so}}
				if got := Audit(ram, auditStreams); !slices.Equal(got, want) {
					t.Fatalf("%d bytes, stream at %d planted at %d: %+v", size, 80+so, pos, got)
				}
			}
		}
	}
}

// Audit finds a window whose first or last byte, or two bytes, are zero and lie in a block of zeros.
func TestAuditIntoZeros(t *testing.T) {
	stream := pattern(1<<22, auditStreams[0].Seed, 0)[:auditStreams[0].Bytes]
	for zeros := 1; zeros <= 2; zeros++ {
		for _, leading := range []bool{true, false} {
			for align := range 8 {
				so := align // becomes the offset of a window with this many zeros at its edge
				for ; ; so += 8 {
					edge := stream[so+AuditWindow-zeros : so+AuditWindow]
					if leading {
						edge = stream[so : so+zeros]
					}
					if zero(edge) {
						break
					}
				}
				for blocks := 1; blocks <= 8; blocks++ { // if not leading, moves the window in probe's groups
					ram := make([]byte, (blocks+2)*auditBlock)
					for i := 1; i <= blocks; i++ {
						ram[i*auditBlock+auditBlock/2] = 1
					}
					pos := (blocks+1)*auditBlock - AuditWindow + zeros
					if leading {
						pos = auditBlock - zeros
					}
					plant(ram, pos, AuditWindow, 0, uint64(so))
					if leading {
						ram[pos-1] = 0
					} else {
						ram[pos+AuditWindow] = 0
					}
					got := Audit(ram, auditStreams)
					if len(got) != 1 || got[0].Off > uint64(pos) || got[0].Off+got[0].Len < uint64(pos)+AuditWindow {
						t.Fatalf("%d zeros (leading: %v) of the window at %d in %d blocks: %+v", zeros, leading, so, blocks, got)
					}
				}
			}
		}
	}
}

// Invariant: gpumem: The audit misses no window of the payload, and reports no false one.
func TestAuditAgainstSimple(t *testing.T) {
	streams := []Stream{{Seed: 7, Bytes: 300}, {Seed: 8, Bytes: 77}, {Seed: 9, Bytes: 63}, {Seed: 7 + step, Bytes: 200}}
	full := make([][]byte, len(streams))
	for i, s := range streams {
		full[i] = pattern(int(s.Bytes), s.Seed, 0)
	}
	rapid.Check(t, func(t *rapid.T) {
		ram := make([]byte, rapid.SampledFrom([]int{0, 10, 63, 64, 70, 500, 2 * auditBlock, 3*auditBlock + 5}).Draw(t,
			"size"))
		if rapid.Bool().Draw(t, "noise") {
			random(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), ram)
		}
		for range rapid.IntRange(0, 6).Draw(t, "plants") {
			if len(ram) == 0 {
				break
			}
			i := rapid.IntRange(0, len(streams)-1).Draw(t, "stream")
			from := rapid.IntRange(0, len(full[i])-1).Draw(t, "from")
			n := rapid.IntRange(1, len(full[i])-from).Draw(t, "n")
			pos := rapid.IntRange(0, len(ram)-1).Draw(t, "at")
			if rapid.Bool().Draw(t, "near an edge") {
				pos = min(len(ram)-1, max(0, pos/auditBlock*auditBlock-rapid.IntRange(0, 80).Draw(t, "before")))
			}
			copy(ram[pos:], full[i][from:from+n])
		}
		want := simpleAudit(ram, full)
		if got := Audit(ram, streams); !slices.Equal(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
		got, err := AuditReader(bytes.NewReader(ram), int64(len(ram)), streams)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("got  %+v, %v\nwant %+v", got, err, want)
		}
	})
}

// simpleAudit finds the hits by a map of all windows.
func simpleAudit(ram []byte, streams [][]byte) []Hit {
	var hits []Hit
	for i, s := range streams {
		where := map[[AuditWindow]byte]int{}
		for pos := range max(len(s)-AuditWindow+1, 0) {
			where[[AuditWindow]byte(s[pos:])] = pos
		}
		for pos := range max(len(ram)-AuditWindow+1, 0) {
			if so, ok := where[[AuditWindow]byte(ram[pos:])]; ok {
				hits = append(hits, Hit{Off: uint64(pos), Len: AuditWindow, Stream: i, StreamOff: uint64(so)})
			}
		}
	}
	return join(hits)
}

func TestAuditOfLongPieces(t *testing.T) {
	ram := make([]byte, 3*auditChunk+777)
	random(rand.New(rand.NewPCG(5, 6)), ram)
	plant(ram, 5, 2*auditChunk+1000, 1, 1<<40-4*auditChunk) // the piece crosses two ends of chunks
	plant(ram, 2*auditChunk+2000, 100, 0, 0)
	plant(ram, len(ram)-64, 64, 1, 1<<40+3-64) // both memory and stream end with it
	want := []Hit{
		{Off: 5, Len: 2*auditChunk + 1000, Stream: 1, StreamOff: 1<<40 - 4*auditChunk},
		{Off: 2*auditChunk + 2000, Len: 100, Stream: 0, StreamOff: 0},
		{Off: uint64(len(ram)) - 64, Len: 64, Stream: 1, StreamOff: 1<<40 + 3 - 64},
	}
	if got := Audit(ram, auditStreams); !slices.Equal(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
	if got := Audit(ram, auditStreams[:1]); !slices.Equal(got, want[1:2]) {
		t.Fatalf("of one stream: %+v", got)
	}
	if got := Audit(ram, nil); got != nil {
		t.Fatalf("of no stream: %+v", got)
	}
}

// Audit finds windows that contain, or lie next to, a word of the stream that is zero.
func TestAuditWithTheZeroWord(t *testing.T) {
	zeroAt := uint64(1000)
	streams := []Stream{{Seed: -(zeroAt + 1) * step, Bytes: 1 << 20}}
	testkit.Equal(t, "the word that is to be zero", word(streams[0].Seed, zeroAt), 0)
	for d := range uint64(72) {
		for _, pos := range []int{auditBlock - 40, auditBlock, 2*auditBlock - 64, 100} {
			ram := make([]byte, 4*auditBlock)
			so := zeroAt*8 - 64 + d
			FillAt(ram[pos:pos+AuditWindow], streams[0].Seed, so)
			got := Audit(ram, streams)
			if len(got) != 1 || got[0].StreamOff-got[0].Off != so-uint64(pos) || got[0].Off > uint64(pos) ||
				got[0].Off+got[0].Len < uint64(pos)+AuditWindow {
				t.Fatalf("stream at %d planted at %d: %+v", so, pos, got)
			}
		}
	}
}

func TestAuditOfSparseFile(t *testing.T) {
	const size = 1 << 33 // reading all of it would take seconds
	f := testkit.Memfd(t, size)
	buf := pattern(300, auditStreams[1].Seed, 99)
	var want []Hit
	for _, pos := range []int64{0, 5*auditChunk - 150, 123456789, size - 300} {
		testkit.OK(t, errOf(f.WriteAt(buf, pos)))
		want = append(want, Hit{Off: uint64(pos), Len: 300, Stream: 1, StreamOff: 99})
	}
	var before, after unix.Stat_t
	testkit.OK(t, unix.Fstat(int(f.Fd()), &before))
	if got, err := AuditReader(f, size, auditStreams); err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := unix.Fstat(int(f.Fd()), &after); err != nil || after.Blocks != before.Blocks {
		t.Fatalf("holes were filled: %d blocks, %d before", after.Blocks, before.Blocks)
	}
}

func TestAuditOfShortFile(t *testing.T) {
	_, err := AuditReader(bytes.NewReader(make([]byte, 100)), 3*auditChunk, auditStreams)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	f, err := os.Open(os.DevNull)
	testkit.OK(t, err)
	defer f.Close()
	if _, err := AuditReader(f, 4096, auditStreams); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func BenchmarkAudit(b *testing.B) {
	for _, streams := range []int{1, 2, 4} {
		for _, what := range []string{"noise", "zeros", "hits"} {
			b.Run(fmt.Sprintf("%s-%d", what, streams), func(b *testing.B) {
				ram := make([]byte, 64<<20)
				switch what {
				case "noise":
					random(rand.New(rand.NewPCG(1, 1)), ram)
				case "hits":
					FillAt(ram, 0, 5)
				}
				var ss []Stream
				for i := range streams {
					ss = append(ss, Stream{Seed: uint64(i) << 60, Bytes: 1 << 36})
				}
				b.SetBytes(int64(len(ram)))
				for b.Loop() {
					if got := Audit(ram, ss); (len(got) != 0) != (what == "hits") {
						b.Fatal(got)
					}
				}
			})
		}
	}
}
