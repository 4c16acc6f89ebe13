package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A Sentinel deployment is a master and a replica, watched by three Sentinels. They
// change the roles when the master has not answered for a second.
type Sentinel struct {
	// Servers hold the data. The first is the master at the start.
	Servers Servers
	// Sentinels watch them.
	Sentinels Servers

	t testing.TB
}

// MasterName is the name by which clients ask Sentinels for the master.
const MasterName = "headgate"

// StartSentinel starts a master, a replica and three Sentinels. The replica is in
// step, and the Sentinels know all and could agree on a failover, when it returns.
// The lines are added to the redis.conf of master and replica.
func StartSentinel(t testing.TB, lines ...string) *Sentinel {
	t.Helper()
	d := &Sentinel{t: t}
	lines = slices.Concat(inMemory, lines)
	for range 2 {
		d.Servers = append(d.Servers, newServer(t, lines))
	}
	master, replica := d.Servers[0], d.Servers[1]
	replica.configure(fmt.Sprintf("replicaof 127.0.0.1 %d", master.port))

	// Sentinels find out about the replica and each other by themselves, in seconds.
	// They start here with what they would write to their configurations then.
	var ids []string
	for range 3 {
		d.Sentinels = append(d.Sentinels, newServer(t, nil, "--sentinel"))
		ids = append(ids, fmt.Sprintf("%016x%016x%08x", rand.Uint64(), rand.Uint64(), rand.Uint32()))
	}
	for i, s := range d.Sentinels {
		s.configure(
			"sentinel myid "+ids[i],
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2", MasterName, master.port),
			"sentinel down-after-milliseconds "+MasterName+" 1000",
			"sentinel failover-timeout "+MasterName+" 3000",
			fmt.Sprintf("sentinel known-replica %s 127.0.0.1 %d", MasterName, replica.port),
		)
		for j, other := range d.Sentinels {
			if j != i {
				s.configure(fmt.Sprintf("sentinel known-sentinel %s 127.0.0.1 %d %s", MasterName, other.port, ids[j]))
			}
		}
	}
	for _, s := range slices.Concat(d.Servers, d.Sentinels) {
		s.launch()
	}
	for _, s := range slices.Concat(d.Servers, d.Sentinels) {
		s.await()
	}
	for _, s := range d.Sentinels {
		s.hurry()
	}
	d.WaitReady()
	return d
}

// hurry makes a Sentinel ask more often than every 10 s what role a server has, and
// not mistake a busy machine's pause for a wrong clock. Redis 6 cannot, and is slower.
func (s *Server) hurry() {
	_, _ = s.Do("SENTINEL", "DEBUG", "INFO-PERIOD", "1000", "ASK-PERIOD", "100", "TILT-TRIGGER", "60000")
}

// Addrs returns the addresses of the Sentinels.
func (d *Sentinel) Addrs() []string { return d.Sentinels.Addrs() }

// Master returns the master, as the first Sentinel that answers sees it.
func (d *Sentinel) Master() *Server {
	d.t.Helper()
	for _, s := range d.Sentinels.Running() {
		if addr, err := s.masterAddr(); err == nil {
			return d.Servers.At(addr)
		}
	}
	d.t.Fatal("redistest: no Sentinel knows the master")
	return nil
}

func (s *Server) masterAddr() (string, error) {
	reply, err := s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
	if err != nil {
		return "", err
	}
	hostPort, _ := reply.([]any)
	if len(hostPort) != 2 {
		return "", errProtocol
	}
	return net.JoinHostPort(fmt.Sprint(hostPort[0]), fmt.Sprint(hostPort[1])), nil
}

// Replica returns the server that is not the master.
func (d *Sentinel) Replica() *Server {
	d.t.Helper()
	if d.Master() == d.Servers[0] {
		return d.Servers[1]
	}
	return d.Servers[0]
}

// KillMaster kills the master and returns it. [Sentinel.WaitFailover] waits for what
// the Sentinels do about it.
func (d *Sentinel) KillMaster() *Server {
	d.t.Helper()
	master := d.Master()
	master.Kill()
	return master
}

// Failover makes the Sentinels exchange the roles of the two servers, which both
// live, and returns the new master when all is ready again.
func (d *Sentinel) Failover() *Server {
	d.t.Helper()
	old := d.Master()
	wait(d.t, "SENTINEL FAILOVER", func() error {
		master, err := d.agreed()
		if err != nil || master != old {
			return err
		}
		// Repeatedly, as a failover may be given up. During one, the command is refused.
		_, err = d.Sentinels.Running()[0].Do("SENTINEL", "FAILOVER", MasterName)
		return cmp.Or(err, errors.New("it has begun"))
	})
	master := d.WaitFailover(old)
	d.WaitReady()
	return master
}

// WaitFailover waits until all Sentinels that run name another master than old, and
// returns it. It takes writes by then. If old lives, it still believes to be master
// and takes writes that will be lost, until [Sentinel.WaitReady].
func (d *Sentinel) WaitFailover(old *Server) *Server {
	d.t.Helper()
	var master *Server
	wait(d.t, "waiting for the failover", func() error {
		var err error
		if master, err = d.agreed(); err != nil {
			return err
		}
		if master == old {
			return errors.New("the Sentinels stay with the old master")
		}
		info, err := master.info("replication")
		if err == nil && info["role"] != "master" {
			err = errors.New("the new master is none yet")
		}
		return err
	})
	return master
}

// WaitReady waits until the replica is in step, and all Sentinels that run see it and could agree
// on a failover. Call it after a Restart of a [Server]. A server that has come back as a second
// master becomes a replica at once; the Sentinels would take 10 s for that.
func (d *Sentinel) WaitReady() {
	d.t.Helper()
	wait(d.t, "waiting for the Sentinels", func() error {
		master, err := d.agreed()
		if err != nil {
			return err
		}
		for _, s := range d.Servers {
			info, err := s.info("replication")
			if err != nil {
				return err
			}
			switch isMaster := info["role"] == "master"; {
			case s == master && !isMaster:
				return errors.New("the new master is none yet")
			case s != master && isMaster:
				_, err := s.Do("REPLICAOF", "127.0.0.1", strconv.Itoa(master.port))
				return cmp.Or(err, errors.New("the old master is one still"))
			}
			if err := inStep(info); err != nil {
				return err
			}
		}
		for _, s := range d.Sentinels.Running() {
			if err := s.sentinelOK(d); err != nil {
				return fmt.Errorf("sentinel %s: %w", s.Addr(), err)
			}
		}
		return nil
	})
}

// agreed returns the master that all Sentinels name that run.
func (d *Sentinel) agreed() (*Server, error) {
	var named []string
	for _, s := range d.Sentinels.Running() {
		addr, err := s.masterAddr()
		if err != nil {
			return nil, err
		}
		named = append(named, addr)
	}
	if different := slices.Compact(slices.Clone(named)); len(different) != 1 {
		return nil, fmt.Errorf("the Sentinels name %q", named)
	}
	if master := d.Servers.At(named[0]); master != nil {
		return master, nil
	}
	return nil, fmt.Errorf("the master is a stranger, %s", named[0])
}

// sentinelOK returns why a Sentinel is not ready.
func (s *Server) sentinelOK(d *Sentinel) error {
	if _, err := s.Do("SENTINEL", "CKQUORUM", MasterName); err != nil {
		return err
	}
	for _, question := range []struct {
		about string
		want  int
		flags string
	}{
		{"REPLICAS", 1, "slave"},
		{"SENTINELS", len(d.Sentinels.Running()) - 1, "sentinel"},
	} {
		reply, err := s.Do("SENTINEL", question.about, MasterName)
		if err != nil {
			return err
		}
		good := 0
		entries, _ := reply.([]any)
		for _, e := range entries {
			about := pairs(e)
			// Valkey 9.1 goes on saying of a Sentinel that it held the old master to be down.
			if strings.TrimSuffix(about["flags"], ",master_down") != question.flags {
				continue
			}
			if status := about["master-link-status"]; question.about == "REPLICAS" && status != "ok" {
				return fmt.Errorf("the replica's link to its master: %s", status)
			}
			good++
		}
		if good != question.want {
			return fmt.Errorf("SENTINEL %s: %d of %d", question.about, good, question.want)
		}
	}
	return nil
}

// pairs returns a flat list of names and values as a map.
func pairs(reply any) map[string]string {
	list, _ := reply.([]any)
	m := make(map[string]string, len(list)/2)
	for p := range slices.Chunk(list, 2) {
		if len(p) == 2 {
			m[fmt.Sprint(p[0])] = fmt.Sprint(p[1])
		}
	}
	return m
}
