package load

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func options(t *testing.T, format string, size uint64) Options {
	o := Defaults()
	o.InProc, o.Format, o.Size, o.Seed, o.GPUMemory = true, format, size, 3, 64<<20
	o.Timeout, o.Log = testkit.Patience, labtest.Log(t)
	return o
}

func do(t *testing.T, o *Options, url string) (*Report, error) {
	t.Helper()
	testkit.LeavesNothing(t)
	o.URL = url
	testkit.OK(t, o.Complete())
	s := testkit.Must(o.Serve())(t)
	defer s.Close()
	return Do(t.Context(), o)
}

// Invariant: vnic load: every byte of a file arrives in GPU memory, and CPUs read of it only the
// heads of responses, less than a thousandth of the bytes; in mode copy all bytes arrive in host
// memory.
func TestLoad(t *testing.T) {
	for _, c := range []struct {
		format string
		size   uint64
		family int
	}{
		{Raw, 1, 4}, {Raw, 5<<20 + 7, 4}, {Raw, 5<<20 + 7, 6}, {Safetensors, 3 << 20, 4}, {Records, 5 << 20, 4},
	} {
		t.Run(fmt.Sprint(c.format, c.size, "IPv", c.family), func(t *testing.T) {
			o := options(t, c.format, c.size)
			o.Modes, o.Family, o.Records, o.Batch = []string{transfer.Devmem, transfer.Copy}, c.family, 10_000, 7
			rep, err := do(t, &o, "")
			testkit.OK(t, err)
			for i := range rep.Runs {
				r := &rep.Runs[i]
				if r.Verified == nil || !*r.Verified || r.Bytes == 0 {
					t.Errorf("%+v", r)
				}
			}
			d := &rep.Runs[0]
			if d.RX.Host > 0 || d.HostCame > 0 || d.RX.Device < d.Bytes {
				t.Errorf("mode devmem: %+v", d)
			}
			if c.size > 1<<20 && c.format != Records && d.LookedShare() >= 0.001 {
				t.Errorf("%d bytes of %d were looked at", d.Looked, d.Bytes)
			}
			if x := &rep.Runs[1]; x.RX.Device > 0 || x.RX.Host < x.Bytes || x.Looked > 0 {
				t.Errorf("mode copy: %+v", x)
			}
			if (c.format == Safetensors) != (len(rep.Tensors) > 0) || (c.format == Records) != (d.Records > 0) {
				t.Errorf("%+v", rep)
			}
		})
	}
}

func TestRounds(t *testing.T) {
	o := options(t, Raw, 9<<20)
	o.GPUMemory = 32 << 20
	testkit.OK(t, o.Complete())
	o.room = 4 << 20
	s := testkit.Must(o.Serve())(t)
	defer s.Close()
	rep, err := Do(t.Context(), &o)
	testkit.OK(t, err)
	testkit.Equal(t, "digests", strings.Count(rep.Runs[0].SHA256, ",")+1, 3)
}

// load uses the GPU that the first NIC may address.
func TestGPUOfALab(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.yaml")
	testkit.OK(t, os.WriteFile(path, []byte(`guests:
  a:
    sockets: [{name: s0, p2p: any}]
    nics: [{name: nic0, below: s0, gpus: [gpu1]}, {name: nic1, below: s0, gpus: [gpu0]}]
    gpus: [{name: gpu0, below: s0, memory: 32M}, {name: gpu1, below: s0, memory: 64M}]
`), 0o600))
	o := options(t, Raw, 40<<20)
	o.Lab = testkit.Must(labfile.Load(path, nil))(t)
	rep, err := do(t, &o, "")
	testkit.OK(t, err)
	testkit.Equal(t, "digests: one of all", len(rep.Runs[0].SHA256), 64)
}

// A slow consumer waits for data part of its time.
func TestConsumer(t *testing.T) {
	o := options(t, Records, 4<<20)
	o.Records, o.Batch, o.Step = 64<<10, 8, 20*time.Millisecond
	rep, err := do(t, &o, "")
	testkit.OK(t, err)
	r := &rep.Runs[0]
	testkit.Equal(t, "records", r.Records, 64)
	if r.Waited <= 0 || r.Waited >= 1 || r.First <= 0 {
		t.Errorf("%+v", r)
	}
}

// Without peer-to-peer all payload for GPU memory is bounced.
func TestWithoutPeerToPeer(t *testing.T) {
	o := options(t, Raw, 3<<20)
	testkit.OK(t, o.P2P.Set("off"))
	rep, err := do(t, &o, "")
	testkit.OK(t, err)
	if r := &rep.Runs[0]; r.RX.Device > 0 || r.RX.Bounced < r.Bytes {
		t.Errorf("%+v", r)
	}
}

func TestWrongByteIsFound(t *testing.T) {
	o := options(t, Raw, 3<<20)
	testkit.OK(t, o.Complete())
	s := testkit.Must(o.Serve())(t)
	defer s.Close()
	inner := s.Content
	s.Content = func(w http.ResponseWriter, r *http.Request) { inner(&liar{ResponseWriter: w}, r) }
	_, err := Do(t.Context(), &o)
	testkit.ErrorIs(t, err, ErrProof)
	testkit.ErrorSays(t, err, "byte ", "is not what the server has")
}

// liar changes the first byte of each write of several bytes.
type liar struct{ http.ResponseWriter }

func (l *liar) Write(b []byte) (int, error) {
	if len(b) > 1 {
		b = slices.Clone(b)
		b[0] ^= 1
	}
	return l.ResponseWriter.Write(b)
}

func TestDigest(t *testing.T) {
	text := strings.Repeat("records ", 100_000)
	sum := sha256.Sum256([]byte(text))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "x", time.Time{}, strings.NewReader(text))
	}))
	defer srv.Close()
	for right, digest := range map[bool]string{true: hex.EncodeToString(sum[:]), false: strings.Repeat("0", 64)} {
		o := options(t, Raw, 1)
		o.SHA256 = digest
		rep, err := do(t, &o, srv.URL+"/x")
		if (err == nil) != right || *rep.Runs[0].Verified != right {
			t.Errorf("%s: %v", digest, err)
		}
	}
}

func TestEndOfALongFile(t *testing.T) {
	const size = 1 << 20
	for _, begin := range []int64{1<<40 + 1, 5 << 40, math.MaxInt64 - size} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "x", time.Time{}, io.NewSectionReader(zeros{}, 0, begin+size))
		}))
		o := options(t, Records, 1)
		o.Skip, o.Records, o.Batch = uint64(begin), 4096, 64
		rep, err := do(t, &o, srv.URL+"/x")
		srv.Close()
		if err != nil {
			t.Errorf("%d bytes: %v", begin+size, err)
			continue
		}
		testkit.Equal(t, "bytes", rep.Runs[0].Bytes, size)
		testkit.Equal(t, "size", rep.Size, uint64(begin+size))
	}
}

type zeros struct{}

func (zeros) ReadAt(b []byte, _ int64) (int, error) {
	clear(b)
	return len(b), nil
}

func TestRefusals(t *testing.T) {
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/whole", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) })
	mux.Handle("/tls", http.RedirectHandler("https://localhost/x", http.StatusFound))
	mux.HandleFunc("/changed", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", fmt.Sprintf(`"%d"`, min(3, asked.Add(1))))
		http.ServeContent(w, r, "x", time.Time{}, strings.NewReader(strings.Repeat("x", 8<<20)))
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	for path, says := range map[string]string{
		"/whole": "range", "/tls": "https", "/none": "404 Not Found", "/changed": "changed",
	} {
		o := options(t, Raw, 1)
		_, err := do(t, &o, srv.URL+path)
		testkit.ErrorSays(t, err, says)
	}
}

func TestInterruption(t *testing.T) {
	testkit.LeavesNothing(t)
	o := options(t, Records, 8<<20)
	o.Step = time.Minute
	testkit.OK(t, o.Complete())
	s := testkit.Must(o.Serve())(t)
	defer s.Close()
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	o.Progress = func(string, uint64, uint64) { time.AfterFunc(100*time.Millisecond, func() { cancel(enough) }) }
	_, err := Do(ctx, &o)
	testkit.ErrorIs(t, err, enough)
}

func TestWrongRuns(t *testing.T) {
	no := false
	good := Run{Mode: transfer.Devmem,
		Moved: session.Moved{Bytes: 100, Traffic: session.Traffic{RX: session.Place{Device: 124}}}}
	if wrong := good.wrong(true); wrong != nil {
		t.Error(wrong)
	}
	for name, change := range map[string]func(r *Run){
		"wrong byte":           func(r *Run) { r.Verified = &no },
		"host memory":          func(r *Run) { r.RX.Host = 1 },
		"as the guest says":    func(r *Run) { r.HostCame = 1 },
		"not in device memory": func(r *Run) { r.RX.Device = 99 },
		"copy":                 func(r *Run) { r.Mode = transfer.Copy },
	} {
		r := good
		change(&r)
		if r.wrong(true) == nil {
			t.Errorf("%s: nothing is wrong", name)
		}
	}
	if good.wrong(false) == nil {
		t.Error("without peer-to-peer, and nothing was bounced")
	}
}

func TestNameOfAFileHasItsFormat(t *testing.T) {
	for url, want := range map[string]string{
		"http://localhost/x.safetensors?a=b": Safetensors, "http://localhost/x?y=.safetensors": Raw, "": Raw,
	} {
		o := options(t, "", 1<<20)
		o.URL = url
		testkit.OK(t, o.Complete())
		testkit.Equal(t, "format of "+url, o.Format, want)
	}
}

func TestMistakes(t *testing.T) {
	for says, set := range map[string]func(*Options){
		"--format tar":            func(o *Options) { o.Format = "tar" },
		"--size 0":                func(o *Options) { o.Size = 0 },
		"--connections 0":         func(o *Options) { o.Connections = 0 },
		"--connections 65":        func(o *Options) { o.Connections = 65 },
		"--range 0":               func(o *Options) { o.RangeSize = 0 },
		"--timeout 0s":            func(o *Options) { o.Timeout = 0 },
		"--retry 0s":              func(o *Options) { o.Retry = 0 },
		"--step -1s":              func(o *Options) { o.Step = -time.Second },
		"--sha256 12":             func(o *Options) { o.SHA256 = "12" },
		"--mode rdma":             func(o *Options) { o.Modes = []string{"rdma"} },
		"https":                   func(o *Options) { o.URL = "https://localhost/x" },
		"http://HOST":             func(o *Options) { o.URL = "ftp://localhost/x" },
		"is not a URL":            func(o *Options) { o.URL = "http://[" },
		"--batch 0":               func(o *Options) { o.Format, o.Batch = Records, 0 },
		"--prefetch 0":            func(o *Options) { o.Format, o.Depth = Records, 0 },
		"a smaller --prefetch":    func(o *Options) { o.Format, o.Depth = Records, 1<<10 },
		"no more than GPU memory": func(o *Options) { o.Format, o.Records, o.Batch = Records, 1<<63, 2 },
		"a larger --gpu-memory":   func(o *Options) { o.GPUMemory = 16 << 20 },
		"not a power of two":      func(o *Options) { o.GPUMemory = 3 << 20 },
		"only the last batches":   func(o *Options) { o.Format, o.SHA256 = Records, strings.Repeat("0", 64) },
		"--no-gateway":            func(o *Options) { o.Gateway.Gateway, o.Gateway.NoGateway = "nat", true },
		"--host-ports":            func(o *Options) { o.Gateway.HostPorts = "many" },
		"--format records":        func(o *Options) { o.Step = time.Second },
		"--header: header Range":  func(o *Options) { o.Header = http.Header{"Range": {"bytes=0-1"}} },
		"--header: 20":            func(o *Options) { o.Header = http.Header{"X": {strings.Repeat("x", 20_000)}} },
		"guest 0 alone":           func(o *Options) { testkit.OK(t, o.P2P.Set("off=1")) },
		"with --guest inproc":     func(o *Options) { o.NIC = []string{"gve"} },
		"and 1 of guests":         func(o *Options) { o.NIC = []string{"gve", "gve"} },
		"--family 5":              func(o *Options) { o.Family = 5 },
		"--modules without":       func(o *Options) { o.Fetch.Modules = "x" },
		"--loss":                  func(o *Options) { o.Loss = 2 },
		"192M to 4T":              func(o *Options) { o.Memory = 1 },
	} {
		o := options(t, Raw, 1<<20)
		set(&o)
		if err := o.Complete(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	for _, s := range []string{"", "x", ": x", "a: b\r\nc: d"} {
		if ParseHeader(http.Header{}, s) == nil {
			t.Errorf("header %q is taken", s)
		}
	}
}
