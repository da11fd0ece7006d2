; Parts. A proof is cut into scripts. What a script assumes of a constant of an earlier one is among the
; goals of that one (smt.Encoding.assume). If no goal of any script is possible, none is possible in the
; only model of all the definitions together.
; Induction over the scripts: `right(m)`: in that model no goal of script m holds.
; Used: every obligation that is cut into parts (section 4).

(push 1) ; step
(declare-fun right (Int) Bool)
(declare-fun assumed (Int) Bool)
(declare-const k Int)
(assert (! (forall ((m Int)) (=> (< m k) (right m))) :named hypothesis))
(assert (! (=> (forall ((m Int)) (=> (< m k) (right m))) (assumed k)) :named assumptions_are_goals_before))
(assert (! (=> (assumed k) (right k)) :named unsat_of_script_k))
(assert (not (right k)))
(check-sat)
(pop 1)
