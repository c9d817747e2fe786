package stack

// deque is a double-ended queue in a ring that grows when it is full.
type deque[T any] struct {
	ring []T // its length is a power of two, or 0
	head int
	n    int
}

func (d *deque[T]) len() int { return d.n }

// elem returns element i, counted from the front. The pointer is valid until the deque changes.
func (d *deque[T]) elem(i int) *T { return &d.ring[(d.head+i)&(len(d.ring)-1)] }

func (d *deque[T]) push(v T) {
	if d.n == len(d.ring) {
		ring := make([]T, max(16, 2*d.n))
		for i := range d.n {
			ring[i] = *d.elem(i)
		}
		d.ring, d.head = ring, 0
	}
	d.n++
	*d.elem(d.n - 1) = v
}

func (d *deque[T]) insert(i int, v T) {
	d.push(v)
	for j := d.n - 1; j > i; j-- {
		*d.elem(j) = *d.elem(j - 1)
	}
	*d.elem(i) = v
}

func (d *deque[T]) pop() T {
	var zero T
	v := *d.elem(0)
	*d.elem(0) = zero
	d.head = (d.head + 1) & (len(d.ring) - 1)
	d.n--
	return v
}

func (d *deque[T]) popBack() T {
	var zero T
	v := *d.elem(d.n - 1)
	*d.elem(d.n - 1) = zero
	d.n--
	return v
}
