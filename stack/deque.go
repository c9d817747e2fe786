package stack

// deque is a queue in a ring that grows: what is popped makes room for what is pushed.
type deque[T any] struct {
	ring []T // len is a power of two, or 0
	head int
	n    int
}

func (d *deque[T]) len() int { return d.n }

// at is the element i behind the front. It is valid until the next push or insert.
func (d *deque[T]) at(i int) *T { return &d.ring[(d.head+i)&(len(d.ring)-1)] }

func (d *deque[T]) push(v T) {
	if d.n == len(d.ring) {
		ring := make([]T, max(16, 2*d.n))
		for i := range d.n {
			ring[i] = *d.at(i)
		}
		d.ring, d.head = ring, 0
	}
	d.n++
	*d.at(d.n - 1) = v
}

// insert puts v before element i.
func (d *deque[T]) insert(i int, v T) {
	d.push(v)
	for j := d.n - 1; j > i; j-- {
		*d.at(j) = *d.at(j - 1)
	}
	*d.at(i) = v
}

func (d *deque[T]) pop() T {
	var zero T
	v := *d.at(0)
	*d.at(0) = zero
	d.head = (d.head + 1) & (len(d.ring) - 1)
	d.n--
	return v
}

func (d *deque[T]) popBack() T {
	var zero T
	v := *d.at(d.n - 1)
	*d.at(d.n - 1) = zero
	d.n--
	return v
}
