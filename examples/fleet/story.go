package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// A finding is something that was promised, and what was seen.
type finding struct {
	promised, seen string
	kept           bool
}

func (f *fleet) find(kept bool, promised, seen string, args ...any) {
	f.findings = append(f.findings, finding{promised, fmt.Sprintf(seen, args...), kept})
}

// play is the story. An error means that it could not be told to its end.
func (f *fleet) play(ctx context.Context) error {
	greedy, satisfied := context.WithCancel(ctx)
	var users sync.WaitGroup
	defer users.Wait()
	defer satisfied()
	for _, u := range f.users {
		users.Go(func() { u.connectAgainAndAgain(greedy, f) })
	}
	for _, chapter := range []func(context.Context) error{f.fill, f.kill, f.empty} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	satisfied()
	users.Wait()
	return f.stop(ctx)
}

// fill waits until every user has as many sockets as it may.
func (f *fleet) fill(ctx context.Context) error {
	f.board.say("Each user opens sockets, on one server after the other.")
	if _, err := f.until(ctx, "every user to have its sockets", f.allFull); err != nil {
		return err
	}
	refused := f.refusals()
	if _, err := f.until(ctx, "users to be refused", func() bool { return f.refusals() >= refused+len(f.users) }); err != nil {
		return err
	}
	f.board.say("Every user has %d. What they try now is refused with 429.", f.limit)
	if err := f.wait(ctx, f.pause); err != nil {
		return err
	}
	f.find(f.mostOver() == 0, fmt.Sprintf("no user has more than %d sockets", f.limit), "%d users, at most %d each", len(f.users), f.limit+f.mostOver())
	return nil
}

// kill kills a server and waits until its slots were taken elsewhere.
func (f *fleet) kill(ctx context.Context) error {
	victim := f.servers[0]
	n := victim.sockets()
	f.board.say("Server %s is killed, with %d sockets. Until it is found dead they count.", victim.name, n)
	if err := victim.kill(); err != nil {
		return err
	}
	if _, err := f.until(ctx, "the sockets to be gone", func() bool { return victim.sockets() == 0 }); err != nil {
		return err
	}
	first, err := f.until(ctx, "the first slot to be free", func() bool { return f.missing() < n })
	if err != nil {
		return err
	}
	all, err := f.until(ctx, "all slots to be free", f.allFull)
	if err != nil {
		return err
	}
	f.board.say("After %s its slots were free: the users have them on other servers.", round(first+all))
	if err := f.wait(ctx, f.pause); err != nil {
		return err
	}
	// A beat is a third of a TTL, and the machine may be busy.
	f.find(first+all < 3*f.ttl, fmt.Sprintf("the slots of a killed server are free after a TTL of %v and a beat", f.ttl),
		"%d slots, the first after %s and all after %s", n, round(first), round(first+all))
	f.find(f.mostOver() == 0, "nor does any user ever have more than its limit", "at most %d", f.limit+f.mostOver())
	return nil
}

// empty empties Redis and waits until the counts are right again.
func (f *fleet) empty(ctx context.Context) error {
	open := f.open()
	f.board.say("Redis is emptied.")
	if err := f.forget(ctx); err != nil {
		return fmt.Errorf("emptying Redis: %w", err)
	}
	took, err := f.until(ctx, "the counts to be right again", func() bool { return f.countsAreRight(ctx) })
	if err != nil {
		return err
	}
	f.board.say("After %s every count was right again. Nobody has had to reconnect.", round(took))
	if err := f.wait(ctx, f.pause); err != nil {
		return err
	}
	f.find(took < 3*f.ttl, "an emptied Redis knows all counts again within two beats", "after %s", round(took))
	f.find(f.open() >= open, "and nobody loses a socket", "%d open before, %d after", open, f.open())
	over := f.mostOver()
	f.find(over <= f.limit, fmt.Sprintf("meanwhile a user may get up to %d more", f.limit), "at most %d more", over)
	return nil
}

// stop ends the other servers in order.
func (f *fleet) stop(ctx context.Context) error {
	f.board.say("The other servers stop in order.")
	for _, s := range f.servers[1:] {
		if err := s.stop(); err != nil {
			return fmt.Errorf("server %s: %w", s.name, err)
		}
	}
	held, err := f.counted(ctx)
	if err != nil {
		return err
	}
	f.find(held == 0, "a server that stops in order frees its slots at once", "%d held", held)
	return nil
}

// patience is how long the story waits for something before it counts as broken.
func (f *fleet) patience() time.Duration { return 10*f.ttl + 20*time.Second }

// until waits for something to be seen, and tells how long that took.
func (f *fleet) until(ctx context.Context, what string, seen func() bool) (time.Duration, error) {
	start := time.Now()
	for !seen() {
		if time.Since(start) > f.patience() {
			return 0, errors.New("never seen: " + what)
		}
		if err := f.wait(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func (f *fleet) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// summary writes what was seen. It fails if that is not what was promised.
func (f *fleet) summary(w io.Writer) error {
	fmt.Fprintln(w, "\nPromised, and seen:")
	broken := 0
	for _, x := range f.findings {
		mark := "ok   "
		if !x.kept {
			mark = "WRONG"
			broken++
		}
		fmt.Fprintf(w, "  %s  %s: %s\n", mark, x.promised, x.seen)
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d promises were broken", broken, len(f.findings))
	}
	return nil
}
