package redistest

// Lossy returns how many connections the proxy has dropped bytes of.
func (p *Proxy) Lossy() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.lossy {
			n++
		}
	}
	return n
}
