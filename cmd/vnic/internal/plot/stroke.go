package plot

import "math"

// dashed cuts a line into its dashes. Without dashes it is whole.
func dashed(line []point, dashes []float64) (parts [][]point) {
	if len(dashes) == 0 || len(line) == 0 {
		return [][]point{line}
	}
	part, i, left := []point{line[0]}, 0, dashes[0] // left is what of a dash or gap has not been passed
	for k, b := range line[1:] {
		a := line[k]
		length, passed := math.Hypot(b.x-a.x, b.y-a.y), 0.
		for length-passed > left {
			passed += left
			p := point{a.x + (b.x-a.x)*passed/length, a.y + (b.y-a.y)*passed/length}
			if i%2 == 0 {
				parts = append(parts, append(part, p))
			} else {
				part = []point{p}
			}
			i++
			left = dashes[i%len(dashes)]
		}
		left -= length - passed
		if i%2 == 0 {
			part = append(part, b)
		}
	}
	if i%2 == 0 {
		parts = append(parts, part)
	}
	return parts
}

// outline is polygons that cover a line of a width: a rectangle for each straight part, and a sector at the outer side
// of each corner. They all turn the same way, as a rasterizer that sums up signed areas wants it.
func outline(line []point, width float64) (polygons [][]point) {
	var last point // the normal of the part before, half a width long
	for k := 1; k < len(line); k++ {
		a, b := line[k-1], line[k]
		length := math.Hypot(b.x-a.x, b.y-a.y)
		if length == 0 {
			continue
		}
		n := point{-(b.y - a.y) / length * width / 2, (b.x - a.x) / length * width / 2}
		if last != (point{}) {
			polygons = append(polygons, corner(a, last, n))
		}
		polygons = append(polygons, []point{{a.x + n.x, a.y + n.y}, {b.x + n.x, b.y + n.y}, {b.x - n.x, b.y - n.y},
			{a.x - n.x, a.y - n.y}})
		last = n
	}
	return polygons
}

// corner is the sector around a point where parts of a line with these normals meet.
func corner(p0, before, after point) []point {
	turn := math.Atan2(before.x*after.y-before.y*after.x, before.x*after.x+before.y*after.y)
	from := before
	if turn > 0 { // the outer side is the other one
		from = point{-after.x, -after.y}
	}
	const step = math.Pi / 8
	steps := max(1, math.Ceil(math.Abs(turn)/step))
	sector := []point{p0}
	for i := 0.; i <= steps; i++ {
		sin, cos := math.Sincos(-math.Abs(turn) * i / steps)
		sector = append(sector, point{p0.x + from.x*cos - from.y*sin, p0.y + from.x*sin + from.y*cos})
	}
	return sector
}
