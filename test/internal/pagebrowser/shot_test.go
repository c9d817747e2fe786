//go:build browser

package pagebrowser

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"slices"
)

// smaller returns the PNG with at most 128 colours, its most frequent ones; others become the nearest of these.
func smaller(b []byte) ([]byte, error) {
	was, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	// Colours count as one if each channel rounds to the same multiple of 4.
	shade := func(c color.Color) color.RGBA {
		r, g, b, _ := c.RGBA()
		near := func(v uint32) uint8 { return uint8(min(255, (v>>8+2)/4*4)) }
		return color.RGBA{near(r), near(g), near(b), 255}
	}
	r := was.Bounds()
	count := map[color.RGBA]int{}
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			count[shade(was.At(x, y))]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), bytes.Compare([]byte{a.R, a.G, a.B}, []byte{b.R, b.G, b.B}))
	})
	var p color.Palette
	for _, c := range most[:min(len(most), 128)] {
		p = append(p, c)
	}
	img := image.NewPaletted(r, p)
	index := map[color.RGBA]uint8{}
	for c := range count {
		index[c] = uint8(p.Index(c))
	}
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			img.SetColorIndex(x, y, index[shade(was.At(x, y))])
		}
	}
	var out bytes.Buffer
	e := png.Encoder{CompressionLevel: png.BestCompression}
	err = e.Encode(&out, img)
	return out.Bytes(), err
}
