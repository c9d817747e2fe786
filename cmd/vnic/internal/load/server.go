package load

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"vnic.dev/vnic/cmd/vnic/internal/httpserver"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/limits"
)

// Server is the command's own web server, on this machine's loopback: one file, which follows from the seed.
type Server struct {
	URL     string
	file    *file
	content http.HandlerFunc // set before anybody asks
	srv     *httpserver.Server
}

// file is head, and behind it the seed's pattern: of the file's bytes, not counted from its begin.
type file struct {
	head []byte
	size uint64 // all of it
	seed uint64
}

// gen makes what the file has from byte at on.
func (f *file) gen(b []byte, pos uint64) {
	if n := uint64(len(f.head)); pos < n {
		k := copy(b, f.head[pos:])
		b, pos = b[k:], pos+uint64(k)
	}
	if len(b) > 0 {
		gpumem.FillAt(b, f.seed, pos)
	}
}

// reader is a file as it is read.
type reader struct {
	*file
	pos int64
}

func (r *reader) Read(b []byte) (int, error) {
	left := int64(r.size) - r.pos
	if left <= 0 {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), left)]
	r.gen(b, uint64(r.pos))
	r.pos += int64(len(b))
	return len(b), nil
}

func (r *reader) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += r.pos
	case io.SeekEnd:
		off += int64(r.size)
	}
	if off < 0 {
		return 0, errors.New("seek before the file's begin")
	}
	r.pos = off
	return off, nil
}

// Serve starts the server that a command without a URL has; nil: there is a URL. The caller closes it.
func (o *Options) Serve() (*Server, error) {
	if o.URL != "" {
		return nil, nil //nolint:nilnil // as documented
	}
	f := &file{size: o.Size, seed: o.Seed}
	name := "data"
	switch o.Format {
	case Records: // whole ones
		f.size = max(1, (o.Size-min(o.Size, o.Skip))/o.Record)*o.Record + o.Skip
	case Safetensors:
		var err error
		if f.head, f.size, err = model(o.Size); err != nil {
			return nil, err
		}
		name = "model.safetensors"
	}
	began := time.Now()
	s := &Server{file: f, content: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/"+name {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Etag", strconv.Quote(strconv.FormatUint(f.seed, 16)))
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, name, began, &reader{file: f})
	}}
	var err error
	s.srv, err = httpserver.Serve(httpserver.Options{Addr: "127.0.0.1:0", Flag: "own server", Conns: 2 * maxConnections,
		Long: true, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.content(w, r) })})
	if err != nil {
		return nil, err
	}
	s.URL = s.srv.URL() + name
	o.URL = s.URL
	return s, o.parse()
}

// Close ends the server; s may be nil.
func (s *Server) Close() {
	if s != nil {
		s.srv.Close(limits.LastWords.Here())
	}
}

// model makes the header of a file with the tensors of a small transformer, of at least size bytes of data, with its
// length before it, and says how long the whole file is.
func model(size uint64) (head []byte, all uint64, err error) {
	type tensor struct {
		Type    string    `json:"dtype"`
		Shape   []uint64  `json:"shape"`
		Offsets [2]uint64 `json:"data_offsets"`
	}
	const hidden, inner = 512, 1408
	list := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	pos := uint64(0)
	add := func(name, typ string, width uint64, shape ...uint64) {
		n := width
		for _, d := range shape {
			n *= d
		}
		list[name] = tensor{typ, shape, [2]uint64{pos, pos + n}}
		pos += n
	}
	add("model.embed_tokens.weight", "BF16", 2, 4096, hidden)
	for layer := 0; pos < size; layer++ {
		prefix := fmt.Sprintf("model.layers.%d.", layer)
		for _, w := range []string{"q", "k", "v", "o"} {
			add(prefix+"self_attn."+w+"_proj.weight", "BF16", 2, hidden, hidden)
		}
		add(prefix+"mlp.gate_proj.weight", "BF16", 2, inner, hidden)
		add(prefix+"mlp.up_proj.weight", "BF16", 2, inner, hidden)
		add(prefix+"mlp.down_proj.weight", "BF16", 2, hidden, inner)
		add(prefix+"input_layernorm.weight", "F32", 4, hidden)
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, 0, err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	head = binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	head = append(head, text...)
	return head, uint64(len(head)) + pos, nil
}
