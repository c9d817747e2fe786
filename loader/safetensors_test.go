package loader

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func tensors(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), random(n, 50)...)
}

func TestTensorsLandBehindEachOther(t *testing.T) {
	w := newWorld(t)
	w.conf.RangeSize = 10_000
	header := `{"__metadata__":{"format":"pt","":"x"},"b":{"dtype":"I32","shape":[4],"data_offsets":[200000,200016]},` +
		`"w":{"shape":[100,1000],"dtype":"BF16","data_offsets":[0,200000],"more":{"a":[1]}},` +
		`"none":{"dtype":"F32","shape":[0,7],"data_offsets":[200016,200016]},` +
		`"one":{"dtype":"F64","shape":[],"data_offsets":[200016,200024]}}   `
	file := tensors(header, 200_024)
	o := w.open(serve(t, content(file)).URL)
	s := testkit.Must(o.Safetensors(t.Context()))(t)
	want := []Tensor{{"w", "BF16", []uint64{100, 1000}, 0, 200_000}, {"b", "I32", []uint64{4}, 200_000, 16},
		{"none", "F32", []uint64{0, 7}, 200_016, 0}, {"one", "F64", nil, 200_016, 8}}
	if !slices.EqualFunc(s.Tensors, want, func(a, b Tensor) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("tensors %+v, want %+v", s.Tensors, want)
	}
	testkit.Equal(t, "metadata", fmt.Sprint(s.Metadata), "map[:x format:pt]")
	testkit.Equal(t, "data", s.Data, uint64(8+len(header)))
	const off = 12_345
	testkit.OK(t, s.Load(t.Context(), w.dst, off))
	for _, x := range s.Tensors {
		if !bytes.Equal(w.mem()[off+x.Begin:off+x.Begin+x.Len], file[s.Data+x.Begin:s.Data+x.Begin+x.Len]) {
			t.Errorf("tensor %s has other bytes", x.Name)
		}
	}
	w.only(off, 200_024)
	st := o.Stats()
	testkit.Equal(t, "payload", st.Payload, 200_024)
	testkit.Equal(t, "bytes of the header", st.HeaderBytes, uint64(1+8+len(header)))
	testkit.Equal(t, "host bytes", st.HostBytes, 0)
	testkit.ErrorIs(t, s.Load(t.Context(), w.dst, dstSize-200_023), syscall.EFAULT)
}

func TestFileWithoutData(t *testing.T) {
	w := newWorld(t)
	o := w.open(serve(t, content(tensors("{}", 0))).URL)
	s := testkit.Must(o.Safetensors(t.Context()))(t)
	testkit.OK(t, s.Load(t.Context(), w.dst, 0))
	w.only(0, 0)
}

func TestFilesThatAreNoSafetensors(t *testing.T) {
	w := newWorld(t)
	for name, file := range map[string][]byte{
		"short":                     []byte("1234567"),
		"a header beyond the file":  binary.LittleEndian.AppendUint64(nil, 1),
		"a header beyond all files": append(binary.LittleEndian.AppendUint64(nil, ^uint64(0)), "{}"...),
		"no header":                 tensors("", 0),
		"no data":                   tensors(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 0),
		"more data":                 tensors(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 2),
	} {
		o := testkit.Must(Open(t.Context(), serve(t, content(file)).URL, w.conf))(t)
		_, err := o.Safetensors(t.Context())
		testkit.ErrorIs(t, err, ErrFormat, name)
		testkit.OK(t, o.Close())
	}
}

func TestHeadersThatAreRefused(t *testing.T) {
	one := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"a":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	two := func(first, second string) string {
		return fmt.Sprintf(`{"a":{"dtype":"U8","shape":[8],"data_offsets":%s},`+
			`"b":{"dtype":"U8","shape":[8],"data_offsets":%s}}`, first, second)
	}
	for _, c := range []struct {
		header, says string
		size         uint64
	}{
		{"", "{", 0}, {" {}", "{", 0}, {"[]", "{", 0}, {"{", "EOF", 0}, {"{}x", "goes on", 0}, {"{}{}", "goes on", 0},
		{`{"a":1}`, "1", 0}, {`{"a":null}`, "null", 0}, {`{"a":[]}`, "[", 0}, {`{"a":{}}`, `"a"`, 0},
		{`{"a":{"dtype":"U8"`, "EOF", 0}, {"{\"\xff\":{}}", "UTF-8", 0},
		{`{"__metadata__":{"a":1}}`, "1", 0}, {`{"__metadata__":nul}`, "JSON", 0},
		{`{"__metadata__":"x"}`, "x", 0},
		{`{"__metadata__":{"a":"","a":""}}`, "twice", 0},
		{`{"__metadata__":{},"__metadata__":{}}`, "twice", 0},
		{two("[0,8]", "[8,16]"), "", 16},
		{two("[0,8]", "[9,17]"), `"b" begins at 9`, 17}, {two("[0,8]", "[7,15]"), `"b" begins at 7`, 16},
		{two("[0,8]", "[0,8]"), `"b" begins at 0`, 8}, {two("[1,9]", "[9,17]"), `"a" begins at 1`, 17},
		{strings.ReplaceAll(two("[0,8]", "[8,16]"), `"b"`, `"\u0061"`), "twice", 16},
		{two("[0,8]", "[8,16]"), "of 15", 15}, {two("[0,8]", "[8,16]"), "there are 17", 17},
		{one(`"F128"`, "[1]", "[0,16]"), `"F128"`, 16}, {one(`"f32"`, "[1]", "[0,4]"), `"f32"`, 4},
		{one("7", "[1]", "[0,4]"), "7", 4},
		{one(`"U8"`, "[8]", "[8,0]"), "data_offsets", 8}, {one(`"U8"`, "[8]", "[0]"), "data_offsets", 8},
		{one(`"U8"`, "[8]", "[0,8,8]"), "data_offsets", 8}, {one(`"U8"`, "[8]", "8"), "8", 8},
		{one(`"U8"`, "[-8]", "[0,8]"), "-8", 8}, {one(`"U8"`, "[8.0]", "[0,8]"), "8.0", 8},
		{one(`"U8"`, "[1e1]", "[0,10]"), "1e1", 12},
		{one(`"U8"`, "[null]", "[0,0]"), "null", 0}, {one(`"U8"`, `["8"]`, "[0,8]"), "8", 8},
		{one(`"U8"`, "[18446744073709551616]", "[0,0]"), "18446744073709551616", 0},
		{one(`"U8"`, "[18446744073709551615]", "[0,18446744073709551615]"), "memory", 8},
		{one(`"U8"`, "[4294967296,4294967296,0]", "[0,0]"), "memory", 0},
		{one(`"F64"`, "[4611686018427387904]", "[0,0]"), "memory", 0},
		{one(`"F32"`, "[2]", "[0,7]"), "64 bits", 7}, {one(`"F4"`, "[3]", "[0,1]"), "12 bits", 1},
		{`{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}`, "once", 1},
		{`{"a":{"dtype":"U8","shape":[],"shape":[],"data_offsets":[0,1]}}`, "once", 1},
		{`{"a":{"x":,"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, "no JSON", 1},
		{`{"a":{"x":[}],"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, "no JSON", 1},
		{"{\"a\":{\"x\":\"\n\"," + `"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, "no JSON", 1},
		{`{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],}}`, "a string should be", 1},
		{"{\"a\n\":{}}", "invalid character", 0}, {`{"\x":{}}`, "invalid character", 0}, {`{"a" {}}`, "':'", 0},
		{one(`"U8"`, "[1,]", "[0,1]"), "a number should be", 1}, {one(`"U8"`, "[1 1]", "[0,1]"), "','", 1},
		{one(`"U8"`, "[01]", "[0,1]"), "01", 1}, {one(`"U8"`, "[+1]", "[0,1]"), "+1", 1}, {one(`"U8"`, "[", "[0,1]"), "", 1},
		{`{"a":{"DType":"U8","shape":[],"data_offsets":[0,1]}}`, "each of", 1},
		{`{"a":{"x":` + strings.Repeat("[", 20_000), "", 1},
		{one(`"`+strings.Repeat("x", 1<<20)+`"`, "[1]", "[0,1]"), "...", 1},
	} {
		s, err := ParseSafetensors([]byte(c.header), c.size)
		if c.says == "" && err == nil {
			continue
		}
		if s != nil || len(err.Error()) > 2000 {
			t.Errorf("%.200q: %+v, an error of %d bytes", c.header, s, len(err.Error()))
		}
		testkit.ErrorIs(t, err, ErrFormat, "%.200q", c.header)
		testkit.ErrorSays(t, err, c.says)
	}
	for dtype, size := range dtypes {
		_, err := ParseSafetensors([]byte(one(`"`+dtype+`"`, "[2,4]", fmt.Sprintf("[0,%d]", size))), size)
		testkit.NoError(t, err)
	}
}

// The reference implementation is safetensors/src/tensor.rs of huggingface/safetensors. The test does not run it.
func TestHeadersThatTheReferenceTakes(t *testing.T) {
	const a = `"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`
	for _, c := range []struct {
		header        string
		size, tensors int
	}{
		{`{"__metadata__":null,` + a + `}`, 1, 1},
		{`{` + a + `,"__metadata__":{"format":"pt"}}`, 1, 1},
		{`{"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},` + a + `}`, 3, 2},
		{`{"a":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}}`, 1, 1},
		{`{"a":{"x":1,"x":[{"y":"]}"},null,1e5],"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 1, 1},
		{"{\t\"a\" : {\"dtype\":\"U8\" ,\r\n\"shape\":[ 1 , 1 ],\"data_offsets\" :[0, 1]}}\n", 1, 1},
		{`{"\u0061\ud83d\ude00\/":{"d\u0074ype":"\u00558","shape":[],"data_offsets":[0,1]}}`, 1, 1},
		{`{"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, 1, 1},
	} {
		s, err := ParseSafetensors([]byte(c.header), uint64(c.size))
		testkit.NoError(t, err)
		if err == nil {
			testkit.Equal(t, "tensors of "+c.header, len(s.Tensors), c.tensors)
			testkit.Equal(t, "without an object", errors.Is(s.Load(t.Context(), nil, 0), syscall.EINVAL), c.size > 0)
		}
	}
}

// spaces returns a handler that serves ranges of a file without data, whose header has n bytes: {} and spaces.
func spaces(n int) http.HandlerFunc {
	head := append(binary.LittleEndian.AppendUint64(nil, uint64(n)), "{}"...)
	return func(rw http.ResponseWriter, r *http.Request) {
		blanks := bytes.Repeat([]byte{' '}, 1<<20)
		off, last := 0, 0
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &off, &last)
		rw.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", off, last, 8+n))
		rw.Header().Set("Content-Length", fmt.Sprint(last+1-off))
		rw.WriteHeader(http.StatusPartialContent)
		for b := head; off <= last; off, b = off+len(b), blanks {
			b = b[min(off, len(b)):]
			if off >= len(head) {
				b = blanks
			}
			b = b[:min(len(b), last+1-off)]
			if _, err := rw.Write(b); err != nil {
				return
			}
		}
	}
}

func TestLongestHeader(t *testing.T) {
	if testing.Short() {
		t.Skip("100 MB, byte by byte")
	}
	w := newWorld(t)
	o := testkit.Must(Open(t.Context(), serve(t, spaces(MaxHeader)).URL, w.conf))(t)
	s := testkit.Must(o.Safetensors(t.Context()))(t)
	testkit.Equal(t, "data", s.Data, 8+MaxHeader)
	testkit.OK(t, o.Close())
	_, err := w.open(serve(t, spaces(MaxHeader+1)).URL).Safetensors(t.Context())
	testkit.ErrorIs(t, err, ErrFormat)
	testkit.ErrorSays(t, err, "100000001 bytes", "100000000 at most")
}

func repeated(size int, entry string) string {
	b := []byte{'{'}
	for i := 0; len(b) < size; i++ {
		b = append(fmt.Appendf(b, entry, i), ',')
	}
	b[len(b)-1] = '}'
	return string(b)
}

// Invariant: loader: a header of tensors takes at most 8 bytes of memory for each of its bytes, its
// metadata 16.
func TestMemoryThatAHeaderTakes(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("0,", n) + "0" }
	for _, size := range []int{1 << 17, 3 << 16} {
		for name, c := range map[string]struct {
			header string
			most   float64
		}{
			"tensors of a model": {repeated(size, `"model.layers.%06d.block_sparse_moe.experts.w":{"dtype":"U8","shape":[0],`+
				`"data_offsets":[0,0]}`), 5},
			"short names":   {repeated(size, `"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`), 8},
			"no dimensions": {repeated(size, `"%x":{"dtype":"U8","shape":[],"data_offsets":[0,0]}`), 8},
			"8 dimensions":  {repeated(size, `"%x":{"dtype":"U8","shape":[`+zeros(7)+`],"data_offsets":[0,0]}`), 8},
			"257 of them":   {repeated(size, `"%x":{"dtype":"U8","shape":[`+zeros(256)+`],"data_offsets":[0,0]}`), 8},
			"one shape":     {`{"a":{"dtype":"U8","shape":[` + zeros(size/2) + `],"data_offsets":[0,0]}}`, 8},
			"a wrong shape": {`{"a":{"dtype":"F9","shape":[` + zeros(size/2) + `],"data_offsets":[0,0]}}`, 8},
			"many offsets":  {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[` + zeros(size/2) + `]}}`, 8},
			"commas":        {`{"a":{"dtype":"U8","shape":[` + strings.Repeat(",", size), 8},
			"a long number": {`{"a":{"dtype":"U8","shape":[` + strings.Repeat("9", size), 8},
			"a long name":   {`{"` + strings.Repeat("x", size) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 2},
			"what is skipped": {`{"a":{"x":` + repeated(size, `"%x":[0]`) + `,"dtype":"U8","shape":[0],` +
				`"data_offsets":[0,0]}}`, 1},
			"depth":             {`{"a":{"x":` + strings.Repeat("[", size), 1},
			"words of metadata": {`{"__metadata__":` + repeated(size, `"%x":"dtype"`) + `}`, 16},
			"empty metadata":    {`{"__metadata__":` + repeated(size, `"%x":""`) + `}`, 16},
		} {
			header := []byte(c.header)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s, _ := ParseSafetensors(header, 0)
			runtime.ReadMemStats(&after)
			runtime.KeepAlive(s)
			if x := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(header)); x > c.most {
				t.Errorf("%s: a header of %d bytes takes %.2f times as many, %v at most", name, len(header), x, c.most)
			}
		}
	}
}

func FuzzSafetensors(f *testing.F) {
	f.Add([]byte("{}"), uint64(0))
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}  `), uint64(24))
	f.Add([]byte(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},`+
		`"b":{"dtype":"I8","shape":[],"data_offsets":[1,2]}}`),
		uint64(2))
	f.Add([]byte(`{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0],"x":[{"y":null}]}}`), uint64(1))
	f.Fuzz(func(t *testing.T, header []byte, size uint64) {
		s, err := ParseSafetensors(header, size)
		if err != nil {
			if !errors.Is(err, ErrFormat) || s != nil {
				t.Fatalf("%v, %+v", err, s)
			}
			return
		}
		if !json.Valid(header) {
			t.Fatalf("%q is no JSON", header)
		}
		type info struct {
			DType   string    `json:"dtype"`
			Shape   []uint64  `json:"shape"`
			Offsets [2]uint64 `json:"data_offsets"`
		}
		again, end := make(map[string]any), uint64(0)
		for _, x := range s.Tensors {
			n := uint64(1)
			for _, d := range x.Shape {
				over, product := bits.Mul64(n, d)
				if n = product; over != 0 {
					t.Fatalf("%+v overflows", x)
				}
			}
			if x.Begin != end || x.Len*8 != n*dtypes[x.DType] {
				t.Fatalf("%+v, %d bytes are before it", x, end)
			}
			end += x.Len
			again[x.Name] = info{x.DType, append([]uint64{}, x.Shape...), [2]uint64{x.Begin, end}}
		}
		if end != size {
			t.Fatalf("%d bytes of %d", end, size)
		}
		if s.Metadata != nil {
			again["__metadata__"] = s.Metadata
		}
		b, err := json.Marshal(again)
		if err != nil {
			t.Fatal(err)
		}
		two, err := ParseSafetensors(b, size)
		if err != nil || fmt.Sprint(two) != fmt.Sprint(s) {
			t.Fatalf("%s: %+v, %v; was %+v", b, two, err, s)
		}
	})
}
