; Lower bounds. Every valid schedule runs the writers of what it reads a first time; so it takes at least
; the times of these first runs, and during each first run at least what is there then.
; Invariant over the steps: what is alive or on the host and not the caller's was made: its writer ran.
; Used: claims.required, claims.compute_claims (section 11).

(push 1) ; what is made has run: results, and the new name of an accumulation
(declare-const ran Bool) (declare-const ran_after Bool)
(assert (! (= ran_after run.ran) :named the_writer_runs))
(assert (not ran_after))
(check-sat)
(pop 1)

(push 1) ; prefetch needs a host copy
(declare-const alive Bool) (declare-const flying Bool) (declare-const hosted Bool) (declare-const aged Bool)
(declare-const ran Bool)
(assert (! (=> (or alive hosted) ran) :named invariant))
(assert (! (prefetch.ok alive flying hosted aged) :named guard))
(assert (not (=> (or prefetch.alive hosted) ran)))
(check-sat)
(pop 1)

(push 1) ; offload needs what is alive
(declare-const alive Bool) (declare-const kind Int) (declare-const flying Bool) (declare-const hosted Bool)
(declare-const ran Bool)
(assert (! (=> (or alive hosted) ran) :named invariant))
(assert (! (offload.ok alive kind flying hosted) :named guard))
(assert (not (=> (or alive offload.hosted) ran)))
(check-sat)
(pop 1)

(push 1) ; an update on the host needs host copies of what it reads
(declare-const flying Bool) (declare-const hosted Bool) (declare-const aged Bool)
(declare-const alive Bool) (declare-const ran Bool)
(assert (! (=> (or alive hosted) ran) :named invariant))
(assert (! (look.ok hosted aged flying) :named guard))
(assert (not ran))
(check-sat)
(pop 1)

(push 1) ; the other steps make nothing be there
(declare-const alive Bool) (declare-const kind Int) (declare-const hosted Bool) (declare-const ran Bool)
(assert (! (=> (or alive hosted) ran) :named invariant))
(assert (not (and (=> (or (free.alive alive kind) hosted) ran) (=> (or end.alive hosted) ran)
                  (=> (or alive hostfree.hosted) ran))))
(check-sat)
(pop 1)

(push 1) ; so a read says that its writer ran
(declare-const alive Bool) (declare-const arriving Bool) (declare-const hosted Bool)
(declare-const ran Bool)
(assert (! (=> (or alive hosted) ran) :named invariant))
(assert (! (read.ok alive arriving) :named guard))
(assert (not ran))
(check-sat)
(pop 1)

(push 1) ; time, step: an execution adds the time of a first run, or one that is not negative
(declare-const now Int) (declare-const least Int) (declare-const ran Bool)
(declare-const first Int) (declare-const replay Int)
(assert (! (<= least now) :named hypothesis))
(assert (! (<= 0 replay) :named not_negative))
(assert (not (<= (+ least (ite ran 0 first)) (run.now now ran first replay))))
(check-sat)
(pop 1)

(push 1) ; time, step: nor is the time of issuing a copy negative
(declare-const now Int) (declare-const least Int) (declare-const issue Int)
(assert (! (<= least now) :named hypothesis))
(assert (! (<= 0 issue) :named not_negative))
(assert (not (<= least (issue.now now issue))))
(check-sat)
(pop 1)

(push 1) ; time, step: a wait does not turn it back
(declare-const now Int) (declare-const least Int) (declare-const end Int)
(assert (! (<= least now) :named hypothesis))
(assert (not (<= least (wait.now now end))))
(check-sat)
(pop 1)

(push 1) ; bytes, step over the aNodes: those that must be there are some of what is there
(declare-const least Int) (declare-const sum Int) (declare-const size Int)
(declare-const must Bool) (declare-const there Bool)
(assert (! (<= least sum) :named hypothesis))
(assert (! (=> must there) :named is_there))
(assert (! (<= 0 size) :named not_negative))
(assert (not (<= (+ least (counts must size)) (+ sum (counts there size)))))
(check-sat)
(pop 1)
