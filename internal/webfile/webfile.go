// Package webfile is a web server with one file: an optional head, then bytes that are computed from a seed.
package webfile

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/httpserver"
	"vnic.dev/vnic/internal/limits"
)

// File is a file that begins with Head. From offset len(Head) on, its bytes are those at the same offsets in gpumem's
// pattern of Seed.
type File struct {
	Name string
	Head []byte
	Size uint64 // bytes
	Seed uint64
}

// Fill fills b with the file's bytes from pos on, and beyond Size with more of the pattern.
func (f *File) Fill(b []byte, pos uint64) {
	if n := uint64(len(f.Head)); pos < n {
		k := copy(b, f.Head[pos:])
		b, pos = b[k:], pos+uint64(k)
	}
	if len(b) > 0 {
		gpumem.FillAt(b, f.Seed, pos)
	}
}

// ReadAt implements io.ReaderAt, but reports no end: the caller must not read beyond Size.
func (f *File) ReadAt(b []byte, pos int64) (int, error) {
	f.Fill(b, uint64(pos))
	return len(b), nil
}

// Server is a web server for a File at 127.0.0.1.
type Server struct {
	*File
	URL     string
	Content http.HandlerFunc // handles requests for the file; it may be replaced before the first request
	srv     *httpserver.Server
}

// Serve starts a server for a file, with at most so many open connections. The caller closes s.
func Serve(f *File, connections int) (s *Server, err error) {
	began := time.Now()
	s = &Server{File: f, Content: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", strconv.Quote(strconv.FormatUint(f.Seed, 16)))
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, f.Name, began, io.NewSectionReader(f, 0, int64(f.Size)))
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("/"+f.Name, func(w http.ResponseWriter, r *http.Request) { s.Content(w, r) })
	s.srv, err = httpserver.Serve(httpserver.Options{Addr: "127.0.0.1:0", Flag: "own server", Conns: connections,
		Long: true, Handler: mux})
	if err != nil {
		return nil, err
	}
	s.URL = s.srv.URL() + f.Name
	return s, nil
}

// Close ends the server, after at most limits.LastWords for the requests that it is answering. s may be nil. The error
// is always nil.
func (s *Server) Close() error {
	if s != nil {
		s.srv.Close(limits.LastWords.Here())
	}
	return nil
}

// Model makes the head of a safetensors file with the tensors of a transformer, which have together at least size
// bytes. all is the size of the whole file.
func Model(size uint64) (head []byte, all uint64) {
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
	text, _ := json.Marshal(list) // never fails
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	head = binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	head = append(head, text...)
	return head, uint64(len(head)) + pos
}
